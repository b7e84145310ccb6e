"""A training on a frozen target's hidden states; a killed run goes on and ends with the same weights.

A checkpoint holds weights, optimiser and step. Everything else follows from settings and step: the order of the records
from (seed, epoch), wording and mirroring from (seed, place), the learning rate from the step.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training import devices
from adapters_training.course import PROBE_STEPS, LossCourse, remedy
from adapters_training.exits.batches import Maker, Run
from adapters_training.exits.config import FREE, FrozenTargetConfig, Schedule
from adapters_training.exits.preparation import C, Prepared
from adapters_training.files import read_checkpoint, resumable, write_checkpoint
from speculation.progress import progress

CHECKPOINT_FILE = "checkpoint.pt"
END_SHARE = 0.02
"""What falling schedules leave of the learning rate."""
LOG_STEPS = 10
SPEED_STEPS = 3


@dataclass
class Counts:
    """What a run has gone through; kept in checkpoints, of no influence on the weights."""

    seconds: float = 0.0
    tokens: int = 0
    learned_tokens: int = 0
    truncated: int = 0
    passed_over: int = 0


@dataclass
class StepLosses:
    """Sums over the tokens of one step: `losses` [parts, kinds], as the training counts them."""

    losses: Tensor
    learned: float
    tokens: float
    counts: dict[str, int] = field(default_factory=dict)


def learning_rate(config: FrozenTargetConfig, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    done = step / max(1, steps)
    if config.schedule is Schedule.LINEAR:
        warm *= max(END_SHARE, 1 - done)
    elif config.schedule is Schedule.COSINE:
        warm *= END_SHARE + (1 - END_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return config.learning_rate * warm


class Trainer(ABC, Generic[C]):
    """What learns from one frozen target. `step` counts finished optimiser steps of `steps`."""

    def __init__(self, prepared: Prepared[C], modules: nn.Module) -> None:
        """Train `modules`, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        self.prepared, self.modules = prepared, modules
        config, accelerator = prepared.config, prepared.accelerator
        self.optimiser = torch.optim.AdamW(list(modules.parameters()), lr=0.0, weight_decay=config.weight_decay)
        self.step, self.counts = 0, Counts()
        self.course = LossCourse("the loss", remedy(config.learning_rate))
        self.out = Path(config.out)
        self.checkpoint = self.out / CHECKPOINT_FILE
        self._run = Run(prepared.plan, self._maker(), config.seed, accelerator.process_index)
        found = self._found()
        if found is not None and config.minutes and not config.steps:
            self.steps = int(found["steps"])
        else:
            self.steps = config.steps or (
                self._steps_in(config.minutes) if config.minutes else prepared.plan.steps(config.epochs)
            )
        if found is not None:
            self._take_up(found)
        places = accelerator.gather(
            torch.tensor([self.step * (self.steps + 1) + self.steps], device=accelerator.device)
        )
        if len(set(places.tolist())) > 1:
            raise ValueError(
                f"the processes found different checkpoints: --out {self.out} must be one folder for all nodes"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """What the progress bar calls it."""

    def _maker(self) -> Maker[Any]:
        """Return what makes the batches that are learned from."""
        return self.prepared.maker

    @property
    def clipped_apart(self) -> Sequence[nn.Module]:
        """The modules each of whose gradients is clipped by itself."""
        return (self.modules,)

    @abstractmethod
    def learn(self, batches: Sequence[Any]) -> StepLosses:
        """Add the gradients of one step's forwards, summed over their tokens."""

    @abstractmethod
    def loss_of(self, means: Tensor) -> float:
        """Return the loss that is minimised, of the mean losses of a step: `StepLosses.losses` by token."""

    @abstractmethod
    def log(self, writer: SummaryWriter, means: Tensor) -> None:
        """Write the mean losses of a step."""

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the weights of this run, by name."""
        config, plan = self.prepared.config, self.prepared.plan
        chosen = {name: value for name, value in msgspec.to_builtins(config).items() if name not in FREE}
        return chosen | {
            "steps": self.steps,
            "layers": list(self.prepared.layers),
            "data": list(config.data),
            "target fingerprint": self.prepared.vlm.fingerprint,
            "records": plan.records,
            "records a step": plan.records_a_step,
        }

    def train(self) -> None:
        """Go on to the last step, with a progress bar, TensorBoard and checkpoints.

        Raises TrainingFailed for a loss that is no number, before it is learned from, and OSError for a full disk.
        """
        with resumable(self.checkpoint):
            self._train()

    def check(self) -> None:
        """Raise TrainingFailed where the loss is higher than it was before the first step."""
        self.course.check(self._loss_now())

    def _loss_now(self) -> float:
        """Return the loss that is minimised on the first steps' batches; the weights stay as they are."""
        losses, learned = torch.zeros(()), 0.0
        for batches in self._run.stream(0, PROBE_STEPS, 0):
            done = self.learn(batches)
            learned += self._average(done)
            losses = losses + done.losses
        self.optimiser.zero_grad(set_to_none=True)
        return self.loss_of(losses / learned) if learned else 0.0

    def _train(self) -> None:
        config, first = self.prepared.config, self.prepared.accelerator.is_main_process
        if self.step == 0:
            self.course.start = self._loss_now()
        writer = SummaryWriter(str(self.out / "tensorboard"), purge_step=self.step) if first else None
        device = self.prepared.accelerator.device
        on_gpu, workers = device.type == "cuda", devices.workers(config.workers, device)
        begun = saved = time.monotonic()
        bar = progress(total=self.steps, initial=self.step, unit="step", desc=self.name,
                       mininterval=2.0, hidden=not first)  # fmt: skip
        with bar:
            for batches in self._run.stream(self.step, self.steps, workers, pinned=on_gpu):
                done = self.learn(batches)
                self.update(done)
                now = time.monotonic()
                self.counts.seconds, begun = self.counts.seconds + now - begun, now
                bar.update()
                if writer is not None and (self.step % LOG_STEPS == 0 or self.step == self.steps):
                    self._log(writer, bar, done)
                if first and (now - saved >= config.checkpoint_seconds or self.step == self.steps):
                    self.save()
                    saved = time.monotonic()
        if writer is not None:
            writer.close()

    def update(self, done: StepLosses) -> None:
        """Take one optimiser step on the mean gradient over all tokens of all processes."""
        config = self.prepared.config
        learned = self._average(done)
        if learned:
            warning = self.course.enter(self.loss_of(done.losses / learned), self.step + 1)
            if warning and self.prepared.accelerator.is_main_process:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        for module in self.clipped_apart:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad /= learned
            torch.nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, self.step, self.steps)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.counts.tokens += int(done.tokens)
        self.counts.learned_tokens += int(learned)
        self.counts.truncated += done.counts["cut"]
        self.counts.passed_over += done.counts["passed"]

    def _average(self, done: StepLosses) -> float:
        """Sum gradients and counts over the processes; return the tokens that all of them learned from."""
        accelerator = self.prepared.accelerator
        if accelerator.num_processes == 1:
            return done.learned
        for parameter in self.modules.parameters():
            if parameter.grad is None:  # this process has no answer in this step
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.modules.parameters() if p.grad is not None]
        counts = [done.learned, done.tokens, done.counts["cut"], done.counts["passed"]]
        flat = torch.cat([*(g.flatten() for g in gradients), torch.tensor(counts, device=gradients[0].device)])
        summed = accelerator.reduce(flat, "sum")
        *parts, tail = torch.split(summed, [*(g.numel() for g in gradients), len(counts)])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        done.losses = accelerator.reduce(done.losses.to(flat.device), "sum").cpu()
        done.learned, done.tokens = float(tail[0]), float(tail[1])
        done.counts = {"cut": int(tail[2]), "passed": int(tail[3])}
        return done.learned

    def seconds_a_step(self) -> float:
        """Return how long a step takes, the same in every process; the weights stay as they are."""
        times = []
        for batches in self._run.stream(self.step, self.step + SPEED_STEPS, 0):
            begun = time.monotonic()
            self._average(self.learn(batches))
            self.optimiser.zero_grad(set_to_none=True)
            times.append(time.monotonic() - begun)
        # The first step warms caches and allocators up.
        mean = torch.tensor(sum(times[1:]) / len(times[1:]), device=self.prepared.vlm.device)
        return float(self.prepared.accelerator.reduce(mean, "mean"))

    def _steps_in(self, minutes: float) -> int:
        return max(1, round(60 * minutes / self.seconds_a_step()))

    def save(self) -> None:
        """Write a checkpoint; a kill at any time leaves the old one or the new one."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "weights": self.modules.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "steps": self.steps,
            "settings": self.settings,
            "counts": vars(self.counts),
            "course": self.course.state,
        }
        write_checkpoint(state, self.checkpoint)

    def _found(self) -> dict[str, Any] | None:
        return read_checkpoint(self.checkpoint, "delete it to begin anew") if self.checkpoint.exists() else None

    def _take_up(self, state: dict[str, Any]) -> None:
        there, here = state.get("settings", {}), self.settings
        changed = [name for name in here if there.get(name) != here[name]]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{self.checkpoint} is of other settings ({name}: {there.get(name)} there, {here[name]} now): "
                "give the same to go on, or choose another --out, or delete it"
            )
        self.modules.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.counts = int(state["step"]), Counts(**state["counts"])
        self.course.take(state.get("course", {}))

    def _log(self, writer: SummaryWriter, bar: Any, done: StepLosses) -> None:
        means = done.losses / done.learned
        loss = self.loss_of(means)
        self.log(writer, means)
        speed = self.counts.tokens / max(self.counts.seconds, 1e-9)
        writer.add_scalar("loss", loss, self.step)
        writer.add_scalar("tokens_per_second", speed, self.step)
        writer.add_scalar("learning_rate", learning_rate(self.prepared.config, self.step - 1, self.steps), self.step)
        bar.set_postfix_str(f"loss {loss:.3f}, {speed:.0f} tokens/s")
