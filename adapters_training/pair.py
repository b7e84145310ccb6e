"""Train one model of the embedded pair: first its vision tower on dense labels, then everything on packed answers.

A killed run goes on when it is started again with the same words, and ends with the same weights. Under `torchrun` the
processes share one model.

example:
  python -m adapters_training pair --role draft --data out/data --processor out/processor --out out/draft

time: the progress bar tells it; hours for a target on two CPU cores
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from adapters_training import devices
from adapters_training.batches import Plan, Run
from adapters_training.data_parallel import Replicas
from adapters_training.devices import Precision
from adapters_training.files import filling, read_checkpoint
from adapters_training.losses import Probes, compute, see
from adapters_training.packing import Batch, Packer
from adapters_training.settings import Command
from adapters_training.shapes import DRAFT, TARGET, build_model, known_objects
from adapters_training.sources.mixture import open_mixture
from adapters_training.trainer import PROBE_STEPS, LearningConfig, Schedule, StepLosses, Trainer
from speculation.file_modes import share
from speculation.language.prompts import Vocabulary
from speculation.vlm.load import ModelFolderError, load_vlm, tokenizer_fingerprint
from speculation.vlm.processing import Processor

FIGURES = ("loss/words", "loss/dense", "loss/asked", "accuracy/tokens", "accuracy/action", "accuracy/side")
_FREE = frozenset({"out", "export", "device", "workers", "checkpoint_seconds"})
"""Settings that may change between the parts of a run: they do not decide what is learned."""
Role = Literal["target", "draft"]


class PairConfig(LearningConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one model's training."""

    role: Annotated[Role, Meta(description="which of the two shapes: target or draft")]
    data: Annotated[tuple[str, ...], Meta(description="folders of the 'data' or 'answers' command")]
    processor: Annotated[str, Meta(description="folder of the 'processor' command")]
    export: Annotated[str, Meta(description="model folder to write at the end")] = ""
    steps: Annotated[int, Meta(ge=1, description="optimiser steps")] = 5000
    vision_share: Annotated[float, Meta(ge=0, le=1, description="first part of the steps, vision tower alone")] = 0.08
    ground_share: Annotated[
        float, Meta(ge=0, le=1, description="first part of the steps, of which four of five have no words")
    ] = 0.45
    batch_frames: Annotated[int, Meta(ge=1, description="frames a step and process")] = 10
    questions: Annotated[int, Meta(ge=1, description="questions a frame")] = 4
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="at its highest")] = 1e-3
    schedule: Annotated[Schedule, Meta(description="constant, linear or cosine after the warm-up")] = Schedule.COSINE
    warmup_steps: Annotated[int, Meta(ge=0, description="steps in which the learning rate rises from 0")] = 100
    weight_decay: Annotated[float, Meta(ge=0, description="of AdamW")] = 0.05
    dense_weight: Annotated[float, Meta(ge=0, description="of the loss under image tokens")] = 0.3
    asked_weight: Annotated[float, Meta(ge=0, description="of the loss at the prompts' ends")] = 0.5
    seed: Annotated[int, Meta(ge=0, description="of weights, order and wording")] = 1
    mixed_precision: Annotated[
        Precision,
        Meta(description="no or bf16: what is multiplied; weights stay float32. auto: bf16 on a GPU, no on a CPU"),
    ] = Precision.AUTO
    teacher: Annotated[str, Meta(description="target model folder to distil from")] = ""
    start_from: Annotated[str, Meta(description="model folder or checkpoint of another run")] = ""
    average_with: Annotated[
        str, Meta(description="another; training begins with the mean of its weights and those of start_from")
    ] = ""


def looking(config: PairConfig, step: int) -> bool:
    """Return whether in this step only the vision tower learns."""
    return step < config.vision_share * config.steps


def grounding(config: PairConfig, step: int) -> bool:
    """Return whether this step is without words: four of five until `ground_share` of the steps are done."""
    return step < config.ground_share * config.steps and step % 5 != 0


class PairTrainer(Trainer[PairConfig]):
    """One model in training. Losses are the one that is followed, and FIGURES: means over the processes."""

    betas = (0.9, 0.98)

    def __init__(self, config: PairConfig, vocabulary: Vocabulary) -> None:
        """Make model and probes, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        torch.set_num_threads(config.threads)
        replicas = Replicas(devices.chosen(config.device))
        shape = TARGET if config.role == "target" else DRAFT
        self.name, self.processor_folder = config.role, Path(config.processor)
        self.processor = _load_processor(self.processor_folder)
        tokenizer = self.processor.tokenizer
        self.model = build_model(shape, tokenizer, config.seed).to(replicas.device)
        self.model.train()
        self.probes = Probes(shape.hidden, shape.layers, vocabulary).to(replicas.device)
        # Without answers the vision tower alone learns: then its loss is what is followed, else that of the words.
        self._without_answers = config.vision_share >= 1.0
        self._packer = Packer(tokenizer, vocabulary, config.questions)
        self._frames = open_mixture(config.data, "data")
        self._frames.frame(0)
        if replicas.is_first:
            self._frames.report("data")
        forwards = self._batches(config, replicas.size, replicas.rank, partial(grounding, config))
        super().__init__(config, replicas, {"model": self.model, "probes": self.probes}, forwards, config.steps)
        if not self.checkpoint.exists():
            if config.start_from:
                self._start_from(Path(config.start_from))
            elif config.average_with:
                raise ValueError("average_with: there is nothing to average it with; give start_from too")
        self.teacher = _load_teacher(config.teacher, tokenizer, replicas.device)

    @property
    def settings(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self.config)
        return {name: value for name, value in fields.items() if name not in _FREE}

    def _start_from(self, path: Path) -> None:
        weights, probes = self._read(path)
        if self.config.average_with:
            # the weight-space ensemble of Wortsman et al., Robust fine-tuning, arXiv 2109.01903, alpha 1/2
            other, _ = self._read(Path(self.config.average_with))
            if {n: v.shape for n, v in other.items()} != {n: v.shape for n, v in weights.items()}:
                raise ValueError(f"average_with {self.config.average_with} holds a model of another shape than {path}")
            weights = {name: (values.float() + other[name].float()) / 2 for name, values in weights.items()}
        try:
            self.model.load_state_dict(weights)
        except RuntimeError:
            role = self.config.role
            raise ValueError(f"{path} holds a model of another shape or tokenizer than this {role}") from None
        # Probes of other questions (a new action, say) start anew.
        own = self.probes.state_dict()
        self.probes.load_state_dict(own | {n: values for n, values in probes.items() if values.shape == own[n].shape})

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the weights of a model folder or a checkpoint, and a checkpoint's probes."""
        if path.is_dir():
            vlm = load_vlm(path, threads=None)
            weights, tokenizer, probes = vlm.model.state_dict(), vlm.tokenizer, dict[str, Any]()
        else:
            state = read_checkpoint(path, "give a run's checkpoint.pt or a model folder")
            if not {"model", "probes", "settings"} <= set(state):
                raise ValueError(f"{path} is no checkpoint of this training: it lacks model, probes or settings")
            tokenizer = _load_processor(Path(state["settings"]["processor"])).tokenizer
            weights, probes = state["model"], state["probes"]
        if tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(self.processor.tokenizer):
            raise ValueError(
                f"{path} has another tokenizer than {self.processor_folder}: make that folder with 'processor --like'"
            )
        return weights, probes

    def export(self, folder: Path) -> None:
        """Write the model folder: bf16 weights, config, processor, tokenizer, object names. OSError for a full disk."""
        with filling(folder) as part:
            self.model.to(torch.bfloat16).save_pretrained(part)
            share(*part.glob("*.safetensors"))
            self.model.to(torch.float32)
            for path in self.processor_folder.iterdir():
                (part / path.name).write_bytes(path.read_bytes())

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        batch, config = batches[0].to(self.replicas.device), self.config
        wordless, looks = grounding(config, self.step), looking(config, self.step)
        figures = torch.full((1 + len(FIGURES),), torch.nan, dtype=torch.float64)
        with self.autocast():
            if looks:
                total = dense = self.probes.eyes(see(self.model, batch.pixels), batch.cells)
                figures[2] = dense.detach()
            else:
                found = compute(self.model, batch, self.probes, self.teacher, has_words=not wordless)
                total = found.words + config.dense_weight * found.dense + config.asked_weight * found.asked
                losses = torch.stack([found.words, found.dense, found.asked]).detach()
                figures[1:4] = losses.double().cpu()
                figures[4:] = torch.tensor([found.accuracy, found.action_accuracy, found.side_accuracy])
        total.backward()
        figures[0] = figures[2] if looks or wordless else figures[1]
        return StepLosses(figures, 1, batch.ids.numel())

    def loss_of(self, means: Tensor) -> float:
        return float(means[0])

    def figures(self, means: Tensor) -> dict[str, float]:
        named = zip(FIGURES, means[1:].tolist(), strict=True)
        return {name: value for name, value in named if value == value}  # what the step did not have is no number

    def _batches(self, config: PairConfig, processes: int, process: int, wordless: Callable[[int], bool]) -> Run[Batch]:
        """Return what a process learns from; a step that is `wordless` has questions without answers."""
        plan = Plan(len(self._frames), partial(self._frames.order, config.seed), config.batch_frames, 1, processes)

        def pack(number: Callable[[int], int], first: int, count: int, seed: int) -> Batch:
            frames = [self._frames.frame(number(place)) for place in range(first, first + count)]
            answers = not wordless(first // plan.records_a_step)
            return self._packer.batch(frames, random.Random(f"{seed}/{first}"), answers=answers).with_pixels(
                self.processor
            )

        return Run(plan, pack, config.seed, process)

    @torch.no_grad()
    def loss_now(self) -> float:
        """Return the mean loss on a few batches, the same at any time and in every process."""
        steps = self._batches(self.config, 1, 0, lambda step: self._without_answers)
        total = 0.0
        for batches in steps.stream(0, PROBE_STEPS, workers=0):
            batch = batches[0].to(self.replicas.device)
            with self.autocast():
                if self._without_answers:
                    total += float(self.probes.eyes(see(self.model, batch.pixels), batch.cells))
                else:
                    total += float(compute(self.model, batch, self.probes, self.teacher).words)
        return total / PROBE_STEPS


def _load_processor(folder: Path) -> Processor:
    try:
        return Processor.load(folder)
    except (OSError, ValueError):
        raise ValueError(
            f"{folder} holds no tokenizer and processor: run 'python -m adapters_training processor' first"
        ) from None


def _load_teacher(folder: str, tokenizer: Any, device: torch.device) -> Any:
    if not folder:
        return None
    vlm = load_vlm(Path(folder), threads=None, device=str(device))
    if vlm.tokenizer_fingerprint != tokenizer_fingerprint(tokenizer):
        raise ModelFolderError(f"teacher {folder} has another tokenizer than the model that learns; give its processor")
    return vlm.model


def _run(config: PairConfig) -> int:
    """Train, then export where that is asked for.

    Raises ValueError for data, folders or settings of no use, and TrainingFailed, exporting nothing, for a training
    that has made the model worse.
    """
    trainer = PairTrainer(config, known_objects())
    trainer.run()
    if config.export and trainer.replicas.is_first:
        trainer.export(Path(config.export))
    trainer.replicas.wait()
    return 0


COMMAND = Command("pair", "train the embedded target or draft", __doc__, PairConfig, _run)
