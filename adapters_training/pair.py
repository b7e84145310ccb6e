"""Train one model of the embedded pair: first its eyes on dense labels, then everything on packed answers.

Resumable: a checkpoint holds model, heads, optimiser, random state and the time spent; the schedule runs over
`minutes` of training time, so that a machine's speed changes how much is seen, not whether it ends. Under `torchrun`
the processes share one model: see `replicas.py`.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.losses import Losses, Probes, compute, ground, see
from adapters_training.packing import Batch, Packer
from adapters_training.records import Frame, read_shard, shards
from adapters_training.replicas import Replicas
from adapters_training.shapes import DRAFT, TARGET, build_model, parameters
from speculation.prompts import Vocabulary
from speculation.vlm.processing import Processor

CHECKPOINT_SECONDS = 120.0


@dataclass(frozen=True)
class PairConfig:
    """Hyper-parameters of one model's training; `minutes` is training time, checkpoints not counted."""

    role: str
    data: str
    out: str
    minutes: float
    vision_share: float = 0.08
    ground_share: float = 0.45
    batch_frames: int = 10
    questions: int = 4
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    dense_weight: float = 0.3
    asked_weight: float = 0.5
    seed: int = 1
    threads: int = 1
    teacher: str = ""
    start: str = ""


@dataclass
class Progress:
    """How far a run is; saved with every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    frames: int = 0


def stream(folder: Path, batch: int, rng: random.Random) -> Iterator[list[Frame]]:
    """Endless shuffled batches. Shards that appear while training runs are used from the next pass on.

    Two of three frames in which nothing can be found are left out: they cost a look and teach one answer.
    """
    if not shards(folder):
        raise FileNotFoundError(f"no training data in {folder}: run 'python -m adapters_training data' first")
    while True:
        order = shards(folder)
        rng.shuffle(order)
        for first in range(0, len(order), 4):
            frames = [frame for path in order[first : first + 4] for frame in read_shard(path)]
            frames = [frame for frame in frames if frame.seen or rng.random() < 1 / 3]
            rng.shuffle(frames)
            for at in range(0, len(frames) - batch + 1, batch):
                yield frames[at : at + batch]


def learning_rate(config: PairConfig, progress: Progress) -> float:
    """Linear warm-up over 100 steps, then a cosine over the time budget down to 2 %."""
    done = min(1.0, progress.seconds / (config.minutes * 60))
    return config.learning_rate * min(1.0, (progress.step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))


class PairTrainer:
    """One model in training: forward, backward, checkpoint, log."""

    def __init__(self, config: PairConfig, processor_folder: Path, vocabulary: Vocabulary) -> None:
        torch.set_num_threads(config.threads)
        shape = TARGET if config.role == "target" else DRAFT
        self.config, self.vocabulary, self.processor_folder = config, vocabulary, processor_folder
        self.processor = Processor.load(processor_folder)
        tokenizer = self.processor.tokenizer
        self.model = build_model(shape, tokenizer, config.seed)
        self.probes = Probes(shape.hidden, shape.layers, vocabulary)
        self.packer = Packer(tokenizer, vocabulary, config.questions)
        self.teacher = _load_teacher(config.teacher)
        self.replicas = Replicas()
        self.rng = random.Random(config.seed + 1000 * self.replicas.rank)
        self.progress = Progress()
        groups = [p for module in (self.model, self.probes) for p in module.parameters()]
        self.optimiser = torch.optim.AdamW(groups, lr=0.0, weight_decay=config.weight_decay, betas=(0.9, 0.98))
        self.out = Path(config.out)
        self.checkpoint = self.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self._resume()
        elif config.start:
            self._start_from(Path(config.start))

    def _resume(self) -> None:
        state = torch.load(self.checkpoint, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.probes.load_state_dict(state["probes"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["torch_rng"])
        self.progress = Progress(**state["progress"])
        if self.replicas.rank:
            self.rng.seed(f"{self.config.seed}/{self.replicas.rank}/{self.progress.step}")
        else:
            self.rng.setstate(state["rng"])

    def _start_from(self, path: Path) -> None:
        state = torch.load(path, weights_only=False)
        self.model.load_state_dict(state["model"])
        self.probes.load_state_dict(state["probes"])

    def save(self) -> None:
        """Write a checkpoint atomically; of several processes the first one does."""
        if self.replicas.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        temporary = self.checkpoint.with_suffix(".part")
        torch.save(
            {
                "model": self.model.state_dict(),
                "probes": self.probes.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "rng": self.rng.getstate(),
                "torch_rng": torch.get_rng_state(),
                "progress": asdict(self.progress),
            },
            temporary,
        )
        temporary.replace(self.checkpoint)

    def export(self, folder: Path) -> None:
        """Write the model folder: bf16 weights, config, processor, tokenizer, object names."""
        if self.replicas.rank:
            return
        self.model.to(torch.bfloat16).save_pretrained(folder)
        self.model.to(torch.float32)
        for path in self.processor_folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())

    @property
    def looking(self) -> bool:
        """True while only the vision tower learns."""
        return self.progress.seconds < self.config.vision_share * self.config.minutes * 60

    @property
    def grounding(self) -> bool:
        """True for a step without words: four of five until `ground_share` of the time is over."""
        done = self.progress.seconds / (self.config.minutes * 60)
        return done < self.config.ground_share and self.progress.step % 5 != 0

    def step(self, frames: list[Frame]) -> Losses | float:
        """One optimiser step; returns the losses, or the dense loss alone while only the eyes learn."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, self.progress)
        wordless = self.grounding
        batch = self.packer.batch(frames, self.rng, answers=not wordless)
        with torch.autocast("cpu", torch.bfloat16):
            result = self._look(batch) if self.looking else self._answer(batch, wordless)
        parameters_ = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.replicas.average(parameters_)
        torch.nn.utils.clip_grad_norm_(parameters_, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.frames += len(frames) * self.replicas.size
        return result

    def _look(self, batch: Batch) -> float:
        loss = self.probes.eyes(see(self.model, self.processor, batch.images), batch.cells)
        loss.backward()
        return float(loss.item())

    def _answer(self, batch: Batch, wordless: bool) -> Losses:
        if wordless:
            losses = ground(self.model, self.processor, batch, self.probes)
        else:
            losses = compute(self.model, self.processor, batch, self.probes, self.teacher)
        total = losses.words + self.config.dense_weight * losses.dense + self.config.asked_weight * losses.asked
        total.backward()  # type: ignore[no-untyped-call]
        return losses

    def train(self) -> None:
        """Run to the end of the time budget, with a progress bar, TensorBoard and checkpoints."""
        config = self.config
        self.out.mkdir(parents=True, exist_ok=True)
        first = self.replicas.rank == 0
        if first:
            (self.out / "config.json").write_text(json.dumps(asdict(config), indent=1) + "\n", encoding="utf-8")
        writer = SummaryWriter(str(self.out / "tensorboard")) if first else None
        self.model.train()
        saved = time.monotonic()
        frames = stream(Path(config.data), config.batch_frames, self.rng)
        bar = tqdm(total=int(config.minutes * 60), initial=int(self.progress.seconds), unit="s", desc=config.role,
                   mininterval=5.0, disable=not first)  # fmt: skip
        bar.write(f"{config.role}: {parameters(self.model) / 1e6:.2f} M parameters, step {self.progress.step}")
        while self.progress.seconds < config.minutes * 60:
            begun = time.monotonic()
            result = self.step(next(frames))
            self.progress.seconds += self.replicas.mean(time.monotonic() - begun)
            bar.update(int(self.progress.seconds) - bar.n)
            if writer and self.progress.step % 20 == 0:
                self._log(writer, bar, result)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        if writer:
            writer.close()
        bar.close()

    def _log(self, writer: Any, bar: Any, result: Losses | float) -> None:
        step = self.progress.step
        writer.add_scalar("learning_rate", learning_rate(self.config, self.progress), step)
        if isinstance(result, float):
            writer.add_scalar("loss/dense", result, step)
            text = f"eyes {result:.3f}"
        else:
            values = {
                "loss/words": result.words.item(),
                "loss/dense": result.dense.item(),
                "loss/asked": result.asked.item(),
                "accuracy/tokens": result.accuracy,
                "accuracy/action": result.action_accuracy,
                "accuracy/side": result.side_accuracy,
            }
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            text = " ".join(f"{name.split('/')[1]} {value:.3f}" for name, value in values.items())
        bar.set_postfix_str(f"step {step} {text}")
        if step % 100 == 0:
            bar.write(f"{self.progress.seconds:7.0f} s  step {step:6d}  {text}  frames {self.progress.frames}")


def _load_teacher(folder: str) -> Any:
    if not folder:
        return None
    from transformers import Qwen2VLForConditionalGeneration

    teacher: Any = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return teacher.eval().requires_grad_(False)
