"""Train early-exit adapters on a frozen target: one target forward per batch trains all exits.

Loss per exit: 0.5 cross-entropy (Early Exits, Sec. 3.1) + KL to the target's own last layer; only adapters learn.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.losses import read, see
from adapters_training.packing import IGNORE, Batch, Packer
from adapters_training.records import batches, read_frames
from speculation.exits import ExitHeads, measure_reliability
from speculation.prompts import Vocabulary
from speculation.vlm.forward import final_logits
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.processing import Processor


@dataclass(frozen=True)
class ExitsConfig:
    """Hyper-parameters of one adapter training; `layers` count from 0."""

    target: str
    data: str
    held_out: str
    out: str
    layers: tuple[int, ...]
    rank: int = 64
    minutes: float = 5.0
    batch_frames: int = 8
    questions: int = 4
    learning_rate: float = 2e-3
    seed: int = 3
    threads: int = 1


def features(model: Any, processor: Processor, batch: Batch) -> tuple[list[Tensor], Tensor]:
    """Return hidden states of answer tokens after every layer, float32 [n, hidden] each, and their labels [n]."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = read(model, batch, see(model, processor, batch.images))
    select = batch.labels != IGNORE
    return [h[select].float() for h in hidden], batch.labels[select]


def final(vlm: Vlm, normed: Tensor) -> Tensor:
    """Return the target's own logits [n, vocabulary]; `normed` is the last hidden state, which comes normed."""
    logits: Tensor = vlm.model.lm_head(normed)[..., : vlm.vocabulary]
    return logits


def train(config: ExitsConfig) -> dict[str, Any]:
    """Train, measure the reliability table on held-out frames, write the exits folder; returns its results."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    vlm = load_vlm(Path(config.target), threads=config.threads)
    vlm.model.requires_grad_(False)
    heads = ExitHeads(vlm, config.layers, config.rank)
    rng = random.Random(config.seed)
    vocabulary = Vocabulary.load(vlm.folder)
    if vocabulary is None:
        raise ValueError(f"{vlm.folder} has no objects.json: simulator data train exits of the embedded pair only")
    packer = Packer(vlm.tokenizer, vocabulary, config.questions)
    optimiser = torch.optim.AdamW(heads.parameters(), lr=config.learning_rate)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    seconds, step = _resume(checkpoint, heads, optimiser)
    writer = SummaryWriter(str(out / "tensorboard"))
    frames = batches([Path(config.data)], config.batch_frames, str(config.seed))
    budget = config.minutes * 60
    bar = tqdm(total=int(budget), initial=int(seconds), unit="s", desc="exits", mininterval=5.0)
    while seconds < budget:
        begun = time.monotonic()
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * max(0.02, 1 - seconds / budget)
        hidden, labels = features(vlm.model, vlm.processor, packer.batch(next(frames), rng))
        loss = _loss(vlm, heads, hidden, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        seconds += time.monotonic() - begun
        bar.update(int(seconds) - bar.n)
        if step % 10 == 0:
            writer.add_scalar("loss/exits", loss.item(), step)
            bar.set_postfix_str(f"step {step} loss {loss.item():.3f}")
        if step % 100 == 0:
            _save(checkpoint, heads, optimiser, seconds, step)
    bar.close()
    writer.close()
    results = measure(vlm, heads, packer, config)
    heads.save(out)
    checkpoint.unlink(missing_ok=True)
    text = json.dumps({"config": asdict(config), "steps": step, **results}, indent=1)
    (out / "results.json").write_text(text + "\n", encoding="utf-8")
    return results


def _save(checkpoint: Path, heads: ExitHeads, optimiser: torch.optim.Optimizer, seconds: float, step: int) -> None:
    weights = [parameter.detach() for parameter in heads.parameters()]
    state = {"weights": weights, "optimiser": optimiser.state_dict(), "seconds": seconds, "step": step}
    temporary = checkpoint.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(checkpoint)


def _resume(checkpoint: Path, heads: ExitHeads, optimiser: torch.optim.Optimizer) -> tuple[float, int]:
    if not checkpoint.exists():
        return 0.0, 0
    state = torch.load(checkpoint, weights_only=True)
    with torch.no_grad():
        for parameter, saved in zip(heads.parameters(), state["weights"], strict=True):
            parameter.copy_(saved)
    optimiser.load_state_dict(state["optimiser"])
    return float(state["seconds"]), int(state["step"])


def _loss(vlm: Vlm, heads: ExitHeads, hidden: Sequence[Tensor], labels: Tensor) -> Tensor:
    with torch.no_grad():
        truth = final(vlm, hidden[-1]).log_softmax(-1)
    loss = hidden[0].new_zeros(())
    for layer in heads.layers:
        logits = heads.logits(layer, hidden[layer + 1])
        divergence = F.kl_div(logits.log_softmax(-1), truth, log_target=True, reduction="batchmean")
        loss = loss + divergence + 0.5 * F.cross_entropy(logits, labels)
    return loss / len(heads.layers)


@torch.no_grad()
def measure(vlm: Vlm, heads: ExitHeads, packer: Packer, config: ExitsConfig) -> dict[str, Any]:
    """Measure every exit on held-out frames and set its reliability table.

    Returns, by layer, how often its next token is the last layer's, with its adapter and without.
    """
    rng, model = random.Random(0), vlm.model
    frames = list(read_frames(Path(config.held_out), 200))
    agreed: dict[int, list[bool]] = {layer: [] for layer in heads.layers}
    confidences: dict[int, list[float]] = {layer: [] for layer in heads.layers}
    bare: dict[int, list[bool]] = {layer: [] for layer in heads.layers}
    for at in range(0, len(frames), config.batch_frames):
        batch = packer.batch(frames[at : at + config.batch_frames], rng, augment=False)
        hidden, _ = features(model, vlm.processor, batch)
        truth = final(vlm, hidden[-1]).argmax(-1)
        for layer in heads.layers:
            confidence, token = heads.logits(layer, hidden[layer + 1]).softmax(-1).max(-1)
            agreed[layer] += (token == truth).tolist()
            confidences[layer] += confidence.tolist()
            bare[layer] += (final_logits(vlm, hidden[layer + 1]).argmax(-1) == truth).tolist()
    heads.set_reliability({layer: measure_reliability(confidences[layer], agreed[layer]) for layer in heads.layers})
    return {
        "tokens": len(agreed[heads.layers[0]]),
        "agreement": {layer: sum(hits) / len(hits) for layer, hits in agreed.items()},
        "agreement without adapter": {layer: sum(hits) / len(hits) for layer, hits in bare.items()},
    }
