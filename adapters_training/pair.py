"""Train one model of the embedded pair: first its vision tower on dense labels, then everything on packed answers.

Exactly resumable: the schedule runs over steps, and step k samples from (seed, process, k), so a checkpoint holds
weights, optimiser and step, and a killed run ends with the weights of an unbroken one. Under `torchrun` the
processes share one model: see `replicas.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training import devices, settings
from adapters_training.attention import for_training
from adapters_training.course import PROBE_STEPS, LossCourse, remedy
from adapters_training.devices import Device
from adapters_training.files import filling, read_checkpoint, resumable, write_checkpoint
from adapters_training.losses import Losses, Probes, compute, ground, see
from adapters_training.packing import Batch, Packer
from adapters_training.replicas import Replicas
from adapters_training.shapes import DRAFT, TARGET, build_model, deepened, known_objects, parameters, retokenised
from adapters_training.steps import Steps
from speculation.language.prompts import Vocabulary
from speculation.progress import progress
from speculation.vlm.load import ModelFolderError, load_vlm, tokenizer_fingerprint
from speculation.vlm.processing import Processor

CHECKPOINT_SECONDS = 120.0
LOG_STEPS, PRINT_STEPS = 20, 100
DRY_STEPS = 2


_FREE = frozenset({"out", "export", "device", "workers"})
"""Settings that may change between the parts of a run: they do not decide what is learned."""
_BEFORE = {"layers": 0, "mixed_precision": "bf16", "average_with": ""}
"""What runs were that began before the setting was there."""

Role = Literal["target", "draft"]


class PairConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one model's training; each is an option of the command line and a line of a YAML file."""

    role: Annotated[Role, Meta(description="which of the two shapes: target or draft")]
    data: Annotated[tuple[str, ...], Meta(description="folders of the 'data' or 'answers' command")]
    processor: Annotated[str, Meta(description="folder of the 'processor' command")]
    out: Annotated[str, Meta(description="run folder: checkpoint, TensorBoard, config; the same goes on")]
    export: Annotated[str, Meta(description="model folder to write at the end")] = ""
    steps: Annotated[int, Meta(ge=1, description="optimiser steps")] = 5000
    vision_share: Annotated[float, Meta(ge=0, le=1, description="first part of the steps, vision tower alone")] = 0.08
    ground_share: Annotated[
        float, Meta(ge=0, le=1, description="first part of the steps, of which four of five have no words")
    ] = 0.45
    batch_frames: Annotated[int, Meta(ge=1, description="frames a step and process")] = 10
    questions: Annotated[int, Meta(ge=1, description="questions a frame")] = 4
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="at its highest")] = 1e-3
    weight_decay: Annotated[float, Meta(ge=0, description="of AdamW")] = 0.05
    dense_weight: Annotated[float, Meta(ge=0, description="of the loss under image tokens")] = 0.3
    asked_weight: Annotated[float, Meta(ge=0, description="of the loss at the prompts' ends")] = 0.5
    seed: Annotated[int, Meta(ge=0, description="of weights, order and wording")] = 1
    threads: Annotated[int, Meta(ge=1, description="of torch in each process")] = 1
    device: Annotated[Device, Meta(description="auto (a GPU where there is one), cpu or cuda")] = Device.AUTO
    mixed_precision: Annotated[
        Literal["auto", "no", "bf16"],
        Meta(description="what is multiplied in bfloat16; weights stay float32. auto: bf16 on a GPU, no on a CPU"),
    ] = "auto"
    workers: Annotated[
        int, Meta(ge=-1, le=256, description="processes that prepare batches; -1: none on a CPU, enough for a GPU")
    ] = -1
    teacher: Annotated[str, Meta(description="target model folder to distil from")] = ""
    start_from: Annotated[str, Meta(description="model folder or checkpoint of another run")] = ""
    average_with: Annotated[
        str, Meta(description="another, as deep; training begins with the mean of its weights and those of start_from")
    ] = ""
    layers: Annotated[
        int, Meta(ge=0, le=128, description="decoder layers; 0: as many as the role has. A shallower start is deepened")
    ] = 0


def looking(config: PairConfig, step: int) -> bool:
    """Return whether in this step only the vision tower learns."""
    return step < config.vision_share * config.steps


def grounding(config: PairConfig, step: int) -> bool:
    """Return whether this step is without words: four of five until `ground_share` of the steps are done."""
    return step < config.ground_share * config.steps and step % 5 != 0


def learning_rate(config: PairConfig, step: int) -> float:
    """Linear warm-up over 100 steps, then a cosine over all steps down to 2 %."""
    done = min(1.0, step / config.steps)
    return config.learning_rate * min(1.0, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))


class PairTrainer:
    """One model in training: forward, backward, checkpoint, log."""

    def __init__(self, config: PairConfig, vocabulary: Vocabulary) -> None:
        torch.set_num_threads(config.threads)
        self.device = devices.chosen(config.device)
        if config.mixed_precision == "auto":
            found: Literal["no", "bf16"] = "bf16" if self.device.type == "cuda" else "no"
            config = msgspec.structs.replace(config, mixed_precision=found)
        shape = TARGET if config.role == "target" else DRAFT
        shape = replace(shape, layers=config.layers or shape.layers)
        self.config, self.vocabulary, self.processor_folder = config, vocabulary, Path(config.processor)
        self.processor = _load_processor(self.processor_folder)
        tokenizer = self.processor.tokenizer
        self.model = build_model(shape, tokenizer, config.seed).to(self.device)
        for_training(self.model)
        self.probes = Probes(shape.hidden, shape.layers, vocabulary).to(self.device)
        self.replicas = Replicas(self.device)
        self.packer = Packer(tokenizer, vocabulary, config.questions)
        self.steps = Steps(
            config.data, config.batch_frames, f"{config.seed}/{self.replicas.rank}", self.packer, self.processor,
            partial(grounding, config),
        )  # fmt: skip
        self.step_count = 0
        self.course = LossCourse("the loss", remedy(config.learning_rate))
        self._unread: list[tuple[int, bool, Tensor]] = []
        """Steps, whether theirs is the loss that is followed, and losses, which are not read at once: a CPU would wait
        for its GPU."""
        groups = [p for module in (self.model, self.probes) for p in module.parameters()]
        self.optimiser = torch.optim.AdamW(groups, lr=0.0, weight_decay=config.weight_decay, betas=(0.9, 0.98))
        self.out = Path(config.out)
        self.checkpoint = self.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self._resume()
        elif config.start_from:
            self._start_from(Path(config.start_from))
        elif config.average_with:
            raise ValueError("average_with: there is nothing to average it with; give start_from too")
        self.teacher = _load_teacher(config.teacher, tokenizer, self.device)

    def _resume(self) -> None:
        state = _read_checkpoint(self.checkpoint)
        changed = [
            name for name, value in _identity(self.config).items() if (_BEFORE | state["config"]).get(name) != value
        ]
        if changed:
            raise ValueError(
                f"{self.checkpoint} was begun with another {', '.join(changed)}; give the same, or another --out"
            )
        self._take(state, self.checkpoint)
        self.optimiser.load_state_dict(state["optimiser"])
        self.step_count = state["step"]
        self.course.take(state.get("course", {}))

    def _start_from(self, path: Path) -> None:
        weights, probes = self._read(path)
        if self.config.average_with:
            # the weight-space ensemble of Wortsman et al., Robust fine-tuning, arXiv 2109.01903, alpha 1/2
            other, _ = self._read(Path(self.config.average_with))
            if {n: v.shape for n, v in other.items()} != {n: v.shape for n, v in weights.items()}:
                raise ValueError(f"average_with {self.config.average_with} holds a model of another shape than {path}")
            weights = {name: (values.float() + other[name].float()) / 2 for name, values in weights.items()}
        self._fit(weights, path)
        # Probes of other questions (a new action, say) start anew.
        own = self.probes.state_dict()
        self.probes.load_state_dict(own | {n: values for n, values in probes.items() if values.shape == own[n].shape})

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the weights of a model folder or a checkpoint, for this run's tokenizer, and a checkpoint's probes."""
        if path.is_dir():
            vlm = load_vlm(path, threads=None)
            return self._respelled(vlm.model.state_dict(), vlm.tokenizer), {}
        state = _read_checkpoint(path)
        before = _load_processor(Path(state["config"]["processor"])).tokenizer
        return self._respelled(state["model"], before), state["probes"]

    def _respelled(self, weights: dict[str, Any], before: Any) -> dict[str, Any]:
        """Return the weights of a model of tokenizer `before` for this one's."""
        now = self.processor.tokenizer
        return (
            weights
            if tokenizer_fingerprint(before) == tokenizer_fingerprint(now)
            else retokenised(weights, before, now)
        )

    def _take(self, state: dict[str, Any], path: Path) -> None:
        self._fit(state["model"], path)
        try:
            self.probes.load_state_dict(state["probes"])
        except RuntimeError:
            raise ValueError(
                f"{path} was begun by an earlier version, which learned other labels; give it as start_from, and "
                "another --out"
            ) from None

    def _fit(self, weights: dict[str, Any], path: Path) -> None:
        try:
            self.model.load_state_dict(deepened(weights, self.config.layers) if self.config.layers else weights)
        except RuntimeError:
            raise ValueError(
                f"{path} holds a model of another shape or tokenizer than this {self.config.role}"
            ) from None

    def save(self) -> None:
        """Write a checkpoint atomically; of several processes the first one does.

        Raises TrainingFailed, and leaves the checkpoint before, where a loss since then is no number.
        """
        self._read_losses()
        if self.replicas.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "probes": self.probes.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step_count,
            "config": _identity(self.config),
            "course": self.course.state,
        }
        write_checkpoint(state, self.checkpoint)

    def export(self, folder: Path) -> None:
        """Write the model folder: bf16 weights, config, processor, tokenizer, object names. OSError for a full disk."""
        if self.replicas.rank:
            return
        with resumable(self.checkpoint), filling(folder) as part:
            self.model.to(torch.bfloat16).save_pretrained(part)
            self.model.to(torch.float32)
            for path in self.processor_folder.iterdir():
                (part / path.name).write_bytes(path.read_bytes())

    def batches(self) -> Iterator[Batch]:
        """Yield what the steps that are left learn from, on the device."""
        workers = devices.workers(self.config.workers, self.device)
        return self.steps.stream(self.step_count, self.config.steps, self.device, workers)

    def step(self, batch: Batch) -> Losses | float:
        """One optimiser step; returns the losses, or the dense loss alone while only the vision tower learns."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, self.step_count)
        wordless = grounding(self.config, self.step_count)
        with self._autocast():
            result = self._look(batch) if looking(self.config, self.step_count) else self._answer(batch)
        parameters_ = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.replicas.average(parameters_)
        torch.nn.utils.clip_grad_norm_(parameters_, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step_count += 1
        if isinstance(result, float):
            self._unread.append((self.step_count, self._without_answers, torch.tensor(result)))
        else:
            loss = result.dense if wordless else result.words
            self._unread.append((self.step_count, not wordless, loss.detach()))
        return result

    @property
    def _without_answers(self) -> bool:
        """Whether the vision tower is all that learns: then its loss is what is followed, else that of the words."""
        return self.config.vision_share >= 1.0

    def _read_losses(self) -> None:
        """Give the course what it has not got; warn of a rise. Raises TrainingFailed for a loss that is no number."""
        losses, self._unread = self._unread, []
        for step, followed, loss in losses:
            self.course.check_finite(float(loss), step)
            warning = self.course.enter(float(loss), step) if followed else ""
            if warning and not self.replicas.rank:
                tqdm.write(f"warning: {warning}", file=sys.stderr)

    def check(self) -> None:
        """Raise TrainingFailed where the loss is higher than it was before the first step."""
        self.course.check(self._loss_now())

    @torch.no_grad()
    def _loss_now(self) -> float:
        """Return the mean loss on a few batches, the same at any time and in every process."""
        steps = Steps(
            self.config.data, self.config.batch_frames, str(self.config.seed), self.packer, self.processor,
            lambda step: self._without_answers,
        )  # fmt: skip
        total = 0.0
        for batch in steps.stream(0, PROBE_STEPS, self.device, workers=0):
            with self._autocast():
                if self._without_answers:
                    total += float(self.probes.eyes(see(self.model, batch.pixels), batch.cells))
                else:
                    total += float(compute(self.model, batch, self.probes, self.teacher).words)
        return total / PROBE_STEPS

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.mixed_precision == "bf16")

    def _look(self, batch: Batch) -> float:
        loss = self.probes.eyes(see(self.model, batch.pixels), batch.cells)
        loss.backward()
        return float(loss.item())

    def _answer(self, batch: Batch) -> Losses:
        if grounding(self.config, self.step_count):
            losses = ground(self.model, batch, self.probes)
        else:
            losses = compute(self.model, batch, self.probes, self.teacher)
        total = losses.words + self.config.dense_weight * losses.dense + self.config.asked_weight * losses.asked
        total.backward()  # type: ignore[no-untyped-call]
        return losses

    def train(self) -> None:
        """Run to the last step, with a progress bar, TensorBoard and checkpoints.

        Raises TrainingFailed for a loss that is no number and OSError for a full disk; the last checkpoint stays.
        """
        with resumable(self.checkpoint):
            self._train()

    def _train(self) -> None:
        config, first = self.config, self.replicas.rank == 0
        self.out.mkdir(parents=True, exist_ok=True)
        if first:
            settings.write(config, self.out / "config.yaml")
        writer = SummaryWriter(str(self.out / "tensorboard"), purge_step=self.step_count) if first else None
        self.model.train()
        if self.step_count == 0:
            self.course.start = self._loss_now()
        saved = time.monotonic()
        bar = progress(total=config.steps, initial=self.step_count, unit="step", desc=config.role, mininterval=5.0,
                       smoothing=0.02, hidden=not first)  # fmt: skip
        bar.write(f"{config.role}: {parameters(self.model) / 1e6:.2f} M parameters, step {self.step_count}")
        with bar:
            for batch in self.batches():
                result = self.step(batch)
                bar.update()
                if writer and self.step_count % LOG_STEPS == 0:
                    self._log(writer, bar, result)
                if self.step_count % LOG_STEPS == 0:
                    self._read_losses()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
            self.save()
        if writer:
            writer.close()

    def _log(self, writer: Any, bar: Any, result: Losses | float) -> None:
        step = self.step_count
        writer.add_scalar("learning_rate", learning_rate(self.config, step), step)
        if isinstance(result, float):
            writer.add_scalar("loss/dense", result, step)
            text = f"vision {result:.3f}"
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
        bar.set_postfix_str(text)
        if step % PRINT_STEPS == 0:
            bar.write(f"step {step:6d}  {text}")


def _identity(config: PairConfig) -> dict[str, Any]:
    """Return what has to be the same for a run to go on as if it had never stopped."""
    fields: dict[str, Any] = msgspec.to_builtins(config)
    return {name: value for name, value in fields.items() if name not in _FREE}


def _load_processor(folder: Path) -> Processor:
    try:
        return Processor.load(folder)
    except (OSError, ValueError):
        raise ValueError(
            f"{folder} holds no tokenizer and processor: run 'python -m adapters_training processor' first"
        ) from None


def _read_checkpoint(path: Path) -> dict[str, Any]:
    state = read_checkpoint(path, "give a run's checkpoint.pt or a model folder")
    if not {"model", "probes"} <= set(state):
        raise ValueError(f"{path} is no checkpoint of this training: it lacks model or probes")
    return state


def _load_teacher(folder: str, tokenizer: Any, device: torch.device) -> Any:
    if not folder:
        return None
    vlm = load_vlm(Path(folder), threads=None, device=str(device))
    if vlm.tokenizer_fingerprint != tokenizer_fingerprint(tokenizer):
        raise ModelFolderError(f"teacher {folder} has another tokenizer than the model that learns; give its processor")
    for_training(vlm.model)
    return vlm.model


def add_command(commands: Any) -> None:
    """Register `pair`."""
    line = commands.add_parser(
        "pair",
        help="train the embedded target or draft",
        description=__doc__,
        epilog="example:\n  python -m adapters_training pair --role draft --data out/data --processor out/processor "
        "--out out/draft\n\ntime: --dry-run estimates the whole run's here; hours for a target on two CPU cores",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settings.add_options(line, PairConfig)
    line.add_argument("--dry-run", action="store_true", help=f"{DRY_STEPS} steps a phase, and what a whole run takes")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, then export where that is asked for. Raises ValueError for data, folders or settings of no use, and
    TrainingFailed, exporting nothing, for a training that has made the model worse."""
    config = settings.read(PairConfig, options)
    if options.dry_run:
        return _dry_run(config)
    trainer = PairTrainer(config, known_objects())
    trainer.train()
    trainer.check()
    if config.export:
        trainer.export(Path(config.export))
    trainer.replicas.close()
    return 0


def _dry_run(config: PairConfig) -> int:
    """Walk the whole path in a folder of its own, with steps of every phase, and estimate what a run would take."""
    seconds = []
    with TemporaryDirectory() as folder:
        for vision, grounding in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0)):
            short = msgspec.structs.replace(config, steps=DRY_STEPS, vision_share=vision, ground_share=grounding,
                            out=f"{folder}/{vision}{grounding}")  # fmt: skip
            trainer = PairTrainer(short, known_objects())
            trainer.train()
            begun = time.monotonic()
            trainer.step(trainer.steps[0].to(trainer.device))
            seconds.append(time.monotonic() - begun)
        trainer.export(Path(folder) / "model")
        load_vlm(Path(folder) / "model", threads=None)
    look, wordless, words = seconds
    late = max(config.ground_share, config.vision_share)
    mean = (
        config.vision_share * look + (late - config.vision_share) * (0.8 * wordless + 0.2 * words) + (1 - late) * words
    )
    print(f"dry run: {look:.2f} s a step of the vision tower, {wordless:.2f} s without words, {words:.2f} s with; "
          f"{config.steps} steps would take about {config.steps * mean / 60:.0f} minutes here")  # fmt: skip
    return 0
