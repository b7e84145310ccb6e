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

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.losses import read, see
from adapters_training.packing import IGNORE, Batch, Packer
from adapters_training.pair import stream
from adapters_training.records import read_frames
from speculation.exits import ExitHeads, Reliability
from speculation.vlm import Vlm, load_vlm
from speculation.vlm.processing import Processor

BINS = tuple(round(0.1 * i, 1) for i in range(11))


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


def features(model: Any, processor: Processor, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return hidden states of answer tokens after every layer, float32 [n, hidden] each, and their labels [n]."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = read(model, batch, see(model, processor, batch.images))
    select = batch.labels != IGNORE
    return tuple(h[select].float() for h in hidden), batch.labels[select]


def train(config: ExitsConfig) -> dict[str, Any]:
    """Train, measure the reliability table on held-out frames, write the exits folder; returns its results."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    vlm = load_vlm(Path(config.target), threads=config.threads)
    vlm.model.requires_grad_(False)
    heads = ExitHeads.create(vlm, config.layers, config.rank)
    rng = random.Random(config.seed)
    packer = Packer(vlm.tokenizer, config.questions)
    optimiser = torch.optim.AdamW(heads.parameters(), lr=config.learning_rate)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    seconds, step = _resume(checkpoint, heads, optimiser)
    writer = SummaryWriter(str(out / "tensorboard"))
    frames = stream(Path(config.data), config.batch_frames, rng)
    budget = config.minutes * 60
    bar = tqdm(total=int(budget), initial=int(seconds), unit="s", desc="exits", mininterval=5.0)
    while seconds < budget:
        begun = time.monotonic()
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * max(0.02, 1 - seconds / budget)
        hidden, labels = features(vlm.model, vlm.processor, packer.batch(next(frames), rng))
        loss = _loss(heads, hidden, labels, vlm.model)
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
            state = {"heads": heads.state_dict(), "optimiser": optimiser.state_dict(), "seconds": seconds, "step": step}
            torch.save(state, checkpoint)
    bar.close()
    writer.close()
    results = measure(vlm, heads, packer, Path(config.held_out), config)
    heads.reliabilities = results.pop("reliability")
    heads.save(out)
    checkpoint.unlink(missing_ok=True)
    text = json.dumps({"config": asdict(config), "steps": step, **results}, indent=1)
    (out / "results.json").write_text(text + "\n", encoding="utf-8")
    return results


def _resume(checkpoint: Path, heads: ExitHeads, optimiser: torch.optim.Optimizer) -> tuple[float, int]:
    if not checkpoint.exists():
        return 0.0, 0
    state = torch.load(checkpoint, weights_only=True)
    heads.load_state_dict(state["heads"])
    optimiser.load_state_dict(state["optimiser"])
    return float(state["seconds"]), int(state["step"])


def _loss(heads: ExitHeads, hidden: Sequence[Tensor], labels: Tensor, model: Any) -> Tensor:
    with torch.no_grad():
        truth = model.lm_head(hidden[-1]).log_softmax(-1)
    loss = hidden[0].new_zeros(())
    for layer in heads.layers:
        logits = heads.full_logits(layer, hidden[layer + 1])
        divergence = F.kl_div(logits.log_softmax(-1), truth, log_target=True, reduction="batchmean")
        loss = loss + divergence + 0.5 * F.cross_entropy(logits, labels)
    return loss / len(heads.layers)


@torch.no_grad()
def measure(vlm: Vlm, heads: ExitHeads, packer: Packer, folder: Path, config: ExitsConfig) -> dict[str, Any]:
    """Per exit on held-out frames: agreement with the last layer, with and without its adapter, and as a function
    of confidence (the reliability table that the edge uses)."""
    rng, model = random.Random(0), vlm.model
    frames = list(read_frames(folder, 200))
    agree: dict[int, list[Tensor]] = {layer: [] for layer in heads.layers}
    sure: dict[int, list[Tensor]] = {layer: [] for layer in heads.layers}
    bare: dict[int, list[Tensor]] = {layer: [] for layer in heads.layers}
    for at in range(0, len(frames) - config.batch_frames + 1, config.batch_frames):
        hidden, _ = features(model, vlm.processor, packer.batch(frames[at : at + config.batch_frames], rng, augment=False))
        truth = model.lm_head(hidden[-1]).argmax(-1)
        for layer in heads.layers:
            confidence, token = heads.full_logits(layer, hidden[layer + 1]).softmax(-1).max(-1)
            agree[layer].append(token == truth)
            sure[layer].append(confidence)
            plain = model.lm_head(model.model.language_model.norm(hidden[layer + 1])).argmax(-1)
            bare[layer].append(plain == truth)
    agreement = {layer: float(torch.cat(agree[layer]).float().mean()) for layer in heads.layers}
    without = {layer: float(torch.cat(bare[layer]).float().mean()) for layer in heads.layers}
    reliability = {
        layer: _table(torch.cat(sure[layer]).numpy(), torch.cat(agree[layer]).numpy()) for layer in heads.layers
    }
    return {"agreement": agreement, "agreement without adapter": without, "reliability": reliability}


def _table(confidence: np.ndarray, agree: np.ndarray) -> Reliability:
    rates = []
    for low, high in zip(BINS, BINS[1:], strict=False):
        inside = (confidence >= low) & (confidence <= high)
        # One imagined agreement and one disagreement keep a bin with few samples from claiming certainty.
        rates.append(float((agree[inside].sum() + 1) / (inside.sum() + 2)))
    return Reliability(BINS, tuple(rates))
