"""The one training loop; a killed run goes on and ends with the same weights.

A checkpoint holds weights, optimiser and step. Everything else follows from settings and step: which records a step
takes, how they are worded and mirrored, the learning rate.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from adapters_training import devices, settings
from adapters_training.batches import Run
from adapters_training.data_parallel import Replicas
from adapters_training.devices import Device, Precision
from adapters_training.files import read_checkpoint, write_checkpoint
from speculation.progress import progress

CHECKPOINT_FILE, CONFIG_FILE = "checkpoint.pt", "config.yaml"
END_SHARE = 0.02
"""What falling schedules leave of the learning rate."""
LOG_STEPS, PRINT_STEPS = 10, 100
PROBE_STEPS = 4
"""Number of steps on whose batches the loss is measured before the first step and after the last one."""
RISE = 1.1
"""How many times the loss at the start, on the same batches, is one that has risen."""


class TrainingFailed(Exception):
    """A training of no use: its loss is no number, or what came of it is worse than what it began with."""


class Schedule(str, Enum):
    """How the learning rate goes on after the warm-up; the latter two end at 2 % of it."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class LearningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of any training; each is an option of the command line and a line of a YAML file."""

    out: Annotated[str, Meta(min_length=1, description="folder for what is trained; a killed run goes on from it")]
    steps: Annotated[int, Meta(ge=1, description="optimiser steps")]
    learning_rate: Annotated[float, Meta(gt=0.0, le=1.0, description="AdamW's, at its highest")] = 1e-4
    schedule: Annotated[Schedule, Meta(description="constant, linear or cosine after the warm-up")] = Schedule.CONSTANT
    warmup_steps: Annotated[int, Meta(ge=0, description="steps in which the learning rate rises from 0")] = 0
    weight_decay: Annotated[float, Meta(ge=0.0, description="AdamW's")] = 0.01
    max_grad_norm: Annotated[float, Meta(gt=0.0, description="gradients are clipped to this norm")] = 1.0
    seed: Annotated[int, Meta(ge=0, description="of weights, order and wording")] = 0
    device: Annotated[Device, Meta(description="auto (a GPU where there is one), cpu or cuda")] = Device.AUTO
    mixed_precision: Annotated[
        Precision,
        Meta(description="no or bf16: what float32 weights are multiplied in. auto: bf16 on a GPU, no on a CPU"),
    ] = Precision.NO
    threads: Annotated[int, Meta(ge=1, description="CPU threads of each process")] = 1
    workers: Annotated[
        int, Meta(ge=-1, le=256, description="processes that prepare data; -1: none on a CPU, enough for a GPU")
    ] = -1
    checkpoint_seconds: Annotated[float, Meta(ge=0.0, description="time between checkpoints")] = 120.0


C = TypeVar("C", bound=LearningConfig)


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
    """Sums over the tokens of one step: `losses` as the training counts them."""

    losses: Tensor
    learned: float = 0
    """What the sums, and those of the gradients, are divided by: tokens."""
    tokens: float = 0
    cut: int = 0
    passed: int = 0


def learning_rate(config: LearningConfig, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    done = min(1.0, step / max(1, steps))
    if config.schedule is Schedule.LINEAR:
        warm *= max(END_SHARE, 1 - done)
    elif config.schedule is Schedule.COSINE:
        warm *= END_SHARE + (1 - END_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return config.learning_rate * warm


class Trainer(ABC, Generic[C]):
    """A training: what learns, from which batches, by which losses. `step` counts finished steps of `steps`."""

    name: str
    """What the progress bar calls it."""
    betas = (0.9, 0.999)

    def __init__(
        self, config: C, replicas: Replicas, modules: Mapping[str, nn.Module], forwards: Run[Any], steps: int
    ) -> None:
        """Train `modules`, or take up the checkpoint in the output folder; ValueError if it is of another run.

        `forwards` has the batches of this process, `steps` is how many steps the run has.
        """
        precision = devices.precision(config.mixed_precision, replicas.device)
        self.config = msgspec.structs.replace(config, mixed_precision=precision)
        self.replicas, self.modules, self.steps = replicas, modules, steps
        self._forwards = forwards
        self.parameters = [each for module in modules.values() for each in module.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=0.0, weight_decay=config.weight_decay, betas=self.betas)
        self.step, self.counts = 0, Counts()
        self.start_loss: float | None = None
        """The loss before the first step."""
        self.remedy = f"give a lower --learning-rate than {config.learning_rate:g}, and another --out"
        self.out = Path(config.out)
        self.checkpoint = self.out / CHECKPOINT_FILE
        if self.checkpoint.exists():
            self._take_up(read_checkpoint(self.checkpoint, "delete it to begin anew"))
        if replicas.mean(self.step) != self.step:
            raise ValueError(
                f"the processes found different checkpoints: --out {self.out} must be one folder for all nodes"
            )

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What decides the weights of this run, by name."""

    @property
    def clipped_apart(self) -> Sequence[Sequence[Tensor]]:
        """The groups of weights each of whose gradients is clipped by itself."""
        return (self.parameters,)

    @abstractmethod
    def learn(self, batches: Sequence[Any]) -> StepLosses:
        """Add the gradients of one step's forwards, summed over their tokens."""

    @abstractmethod
    def loss_of(self, means: Tensor) -> float:
        """Return the loss that is minimised, of the mean losses of a step: `StepLosses.losses` by token."""

    @abstractmethod
    def figures(self, means: Tensor) -> dict[str, float]:
        """Return what TensorBoard shows of the mean losses of a step, by name."""

    def autocast(self) -> Any:
        """Return the context in which forwards multiply in bfloat16 where the settings say so."""
        is_half = self.config.mixed_precision is Precision.BF16
        return torch.autocast(self.replicas.device.type, torch.bfloat16, enabled=is_half)

    def stream(self, first: int, last: int, workers: int) -> Iterator[list[Any]]:
        """Yield the batches that each of these steps learns from; so many processes prepare them ahead."""
        return self._forwards.stream(first, last, workers, pinned=self.replicas.device.type == "cuda")

    def run(self) -> None:
        """Write the settings, train to the last step and compare the loss with that before the first.

        Raises what `train` and `check` raise.
        """
        if self.replicas.is_first:
            settings.write(self.used(), self.out / CONFIG_FILE)
        self.train()
        self.check()
        self.replicas.wait()

    def used(self) -> msgspec.Struct:
        """Return the settings as they are used, which config.yaml shows."""
        return self.config

    def check(self) -> None:
        """Raise TrainingFailed where the loss is higher than it was before the first step."""
        now = self.loss_now()
        # Written so that a loss that is no number fails, too.
        if self.start_loss is not None and not now <= RISE * self.start_loss:
            raise TrainingFailed(
                f"the loss was {self.start_loss:.3f} before the first step and is {now:.3f} after the last: what was "
                f"trained is worse than what it began with and is not written; {self.remedy}"
            )

    def loss_now(self) -> float:
        """Return the loss that is minimised on the first steps' batches; the weights stay as they are."""
        losses, learned = torch.zeros(()), 0.0
        for batches in self.stream(0, PROBE_STEPS, 0):
            done = self.learn(batches)
            learned += self._sum(done)
            losses = losses + done.losses
        self.optimiser.zero_grad(set_to_none=True)
        return self.loss_of(losses / learned) if learned else 0.0

    def train(self) -> None:
        """Go on to the last step, with a progress bar, TensorBoard and checkpoints.

        Raises TrainingFailed for a loss that is no number, before it is learned from, and OSError for a full disk.
        """
        config, first = self.config, self.replicas.is_first
        if self.step == 0:
            self.start_loss = self.loss_now()
        writer = SummaryWriter(str(self.out / "tensorboard"), purge_step=self.step) if first else None
        workers = devices.workers(config.workers, self.replicas.device)
        begun = saved = time.monotonic()
        bar = progress(total=self.steps, initial=self.step, unit="step", desc=self.name,
                       mininterval=2.0, hidden=not first)  # fmt: skip
        with bar:
            for batches in self.stream(self.step, self.steps, workers):
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
        learned = self._sum(done)
        if learned:
            loss = self.loss_of(done.losses / learned)
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss is {loss} at step {self.step + 1}: the training has diverged; {self.remedy}"
                )
        for weights in self.clipped_apart:
            for parameter in weights:
                if parameter.grad is not None and learned:
                    parameter.grad /= learned
            torch.nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, self.step, self.steps)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.counts.tokens += int(done.tokens)
        self.counts.learned_tokens += int(learned)
        self.counts.truncated += done.cut
        self.counts.passed_over += done.passed

    def _sum(self, done: StepLosses) -> float:
        """Sum gradients and counts over the processes; return the tokens that all of them learned from."""
        if self.replicas.size == 1:
            return done.learned
        own = [each.grad for each in self.parameters]
        device = self.parameters[0].device
        # A process without an answer in this step has no gradients, and gets those of the others.
        found = torch.tensor([float(gradient is not None) for gradient in own], device=device)
        counts = torch.tensor([done.learned, done.tokens, done.cut, done.passed], device=device)
        flat = [torch.zeros_like(weight) if gradient is None else gradient
                for weight, gradient in zip(self.parameters, own, strict=True)]  # fmt: skip
        summed = self.replicas.sum(torch.cat([*(gradient.flatten() for gradient in flat), found, counts]))
        *parts, anywhere, tail = torch.split(
            summed, [*(gradient.numel() for gradient in flat), len(found), len(counts)]
        )
        for weight, part, count in zip(self.parameters, parts, anywhere.tolist(), strict=True):
            weight.grad = part.view_as(weight).clone() if count else None
        done.losses = self.replicas.sum(done.losses)
        done.learned, done.tokens, done.cut, done.passed = (
            float(tail[0]), float(tail[1]), int(tail[2]), int(tail[3])
        )  # fmt: skip
        return done.learned

    def save(self) -> None:
        """Write a checkpoint; a kill at any time leaves the old one or the new one."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            **{name: module.state_dict() for name, module in self.modules.items()},
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "settings": self.settings,
            "counts": vars(self.counts),
            "start_loss": self.start_loss,
        }
        write_checkpoint(state, self.checkpoint)

    def _take_up(self, state: Mapping[str, Any]) -> None:
        there, here = state.get("settings", {}), self.settings
        changed = [name for name in here if there.get(name) != here[name]]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{self.checkpoint} is of other settings ({name}: {there.get(name)} there, {here[name]} now): "
                "give the same to go on, or choose another --out, or delete it"
            )
        try:
            for name, module in self.modules.items():
                module.load_state_dict(state[name])
        except RuntimeError:
            raise ValueError(
                f"{self.checkpoint} holds other weights than these settings make: delete it, or choose another --out"
            ) from None
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.counts = int(state["step"]), Counts(**state["counts"])
        self.start_loss = state.get("start_loss")

    def _log(self, writer: SummaryWriter, bar: Any, done: StepLosses) -> None:
        means = done.losses / done.learned
        loss = self.loss_of(means)
        speed = self.counts.tokens / max(self.counts.seconds, 1e-9)
        rate = learning_rate(self.config, self.step - 1, self.steps)
        own = {"loss": loss, "tokens_per_second": speed, "learning_rate": rate}
        for name, value in (self.figures(means) | own).items():
            writer.add_scalar(name, value, self.step)
        text = f"loss {loss:.3f}, {speed:.0f} tokens/s"
        bar.set_postfix_str(text)
        if self.step % PRINT_STEPS == 0:
            bar.write(f"{self.name}, step {self.step} of {self.steps}: {text}", file=sys.stderr)
