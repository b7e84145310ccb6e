"""A recipe as stages: which command makes what out of what, with which settings, and how long that took before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.data import HELD_OUT_SEED, SCENES_PER_SHARD
from adapters_training.devices import cores
from adapters_training.exit_choice.config import MeasureConfig
from adapters_training.recipe.config import Answers, Recipe, Rooms, Section
from adapters_training.records import CELLS
from adapters_training.shapes import DRAFT, IMAGE_SIZE, ROPE_THETA, TARGET

FRAME_S = 0.026
"""Processor seconds of a frame of `data`. These figures are of earlier runs on two shared CPU cores: for a plan, no
measurement of this machine."""
TARGET_FRAME_S, DRAFT_FRAME_S = 0.31, 0.24
"""Seconds of a frame of a step of `pair`, each process with frames of its own; the draft's with a teacher."""
ANSWER_S, PROMPT_S, EXIT_FRAME_S = 0.14, 0.33, 0.28
"""Seconds of an answer, of a prompt of `measure-exits` or a frame of `predictor log`, of a frame of a step of
`exits`."""
FED_STEP_S, KEPT_FRAME_S = 0.5, 0.07
"""Seconds of a step of `fed-head`, and of a frame that the target reads before them."""
PASS_COST_S, SHORT_S = 720.0, 10.0
"""Seconds of `profile-verifier`, and of the stages that take seconds."""


@dataclass(frozen=True)
class Stage:
    """One command of a recipe."""

    name: str
    command: tuple[str, ...]
    """Its words, behind `python -m adapters_training`."""
    settings: Mapping[str, Any]
    """What decides what it makes, besides what comes from `after`."""
    after: tuple[Stage, ...]
    """The stages whose outputs it reads."""
    seconds: float
    """About how long it takes on two CPU cores."""
    file: Section = field(default_factory=dict)
    """Settings that it reads from a YAML file of its own; empty: none."""
    processes: int = 1
    """Of `torchrun`; 1: without."""

    makes: tuple[str, ...] | None = None
    """Folders that it makes; None: one of its own name."""
    beside: bool = False
    """Whether it takes one core and may run beside others that do."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that it makes, under the recipe's."""
        return (self.name,) if self.makes is None else self.makes

    # Kept: asked anew of every stage behind it, its time doubles with each training that builds on the one before.
    @cached_property
    def identity(self) -> str:
        """Names settings and numbers in the code, of this stage and of all that it builds on."""
        known = {"name": self.name, "settings": dict(self.settings), "numbers": numbers(),
                 "after": [stage.identity for stage in self.after]}  # fmt: skip
        return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()


def numbers() -> dict[str, Any]:
    """Return the constants of the code with which all of a pair must be made."""
    return {
        "target": asdict(TARGET), "draft": asdict(DRAFT), "rope theta": ROPE_THETA, "image size": IMAGE_SIZE,
        "cells": CELLS, "scenes a shard": SCENES_PER_SHARD, "held-out seed": HELD_OUT_SEED,
    }  # fmt: skip


class Plan:
    """The stages of a recipe in a folder, in their order; `devices` is how many GPUs there are, 0: the CPU."""

    def __init__(self, recipe: Recipe, out: Path, devices: int) -> None:
        self.recipe, self.out, self._gpus = recipe, out, devices
        self._device = ("--device", "cuda" if devices else "cpu")
        # a GPU is one for all stages
        self._beside = devices == 0
        self.stages: list[Stage] = []
        self._make()

    def model(self, stage: Stage) -> Path:
        """Return where a training of target or draft exports its model."""
        return self.out / stage.name / "model"

    def folder(self, stage: Stage) -> Path:
        """Return the folder of what a stage makes."""
        return self.out / stage.name

    def named(self, name: str) -> Stage:
        """Return a stage. Raises ValueError for a name that no stage has."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ValueError(f"no stage is named {name}; there are {', '.join(stage.name for stage in self.stages)}")

    def _make(self) -> None:
        recipe = self.recipe
        data = self._rooms("data", recipe.data)
        held_out = self._rooms("held-out", recipe.held_out, "--held-out")
        self._processor = self._processor_stage()
        self.target = self._pair("target", "target", recipe.target, [data], None)
        walks = [data]
        for number in range(1, recipe.rounds + 1):
            rooms = msgspec.structs.replace(
                recipe.walk, first_seed=recipe.walk.first_seed + (number - 1) * recipe.walk.scenes
            )
            walker = str(self.model(self.target))
            walks.append(self._rooms(f"walk-{number}", rooms, "--walker", walker, after=(self.target,)))
            repeated = [data, *(walk for walk in walks[1:] for _ in range(recipe.walk_times))]
            self.target = self._pair(f"target-{number}", "target", recipe.walked_target, repeated, self.target)
        teacher = self.target if recipe.taught else None
        alone = self._pair("draft", "draft", recipe.draft, walks, None, teacher)
        answered = self._answers("answers", recipe.distil_answers, data)
        self.draft = self._pair("distil", "draft", recipe.distil, [answered], alone, self.target)
        self._exits(walks, held_out)
        self._fed_head(data, held_out)
        self._predictor(held_out)
        self.pass_cost = self._with_file(
            "pass-cost", "profile-verifier", recipe.pass_cost,
            {"target": str(self.model(self.target)), "out": str(self.out / "pass-cost")}, (self.target,),
            PASS_COST_S, on_device=False,
        )  # fmt: skip

    def _add(self, stage: Stage) -> Stage:
        self.stages.append(stage)
        return stage

    def _rooms(self, name: str, rooms: Rooms, *words: str, after: tuple[Stage, ...] = ()) -> Stage:
        command = ["data", "--out", str(self.out / name), "--scenes", str(rooms.scenes),
                   "--frames-per-scene", str(rooms.frames_per_scene), "--first-seed", str(rooms.first_seed),
                   "--processes", str(cores()), *words, *rooms.options]  # fmt: skip
        seconds = rooms.scenes * rooms.frames_per_scene * (ANSWER_S if after else FRAME_S) / cores()
        return self._add(Stage(name, tuple(command), msgspec.to_builtins(rooms), after, seconds))

    def _processor_stage(self) -> Stage:
        like = self.recipe.processor_of
        words = ("--like", like) if like else ()
        command = ("processor", "--out", str(self.out / "processor"), *words)
        return self._add(Stage("processor", command, {"processor_of": like}, (), SHORT_S))

    def _pair(
        self, name: str, role: str, section: Section, data: Sequence[Stage], start: Stage | None,
        teacher: Stage | None = None,
    ) -> Stage:  # fmt: skip
        given: Section = {
            "role": role, "data": [str(self.folder(each)) for each in data],
            "processor": str(self.folder(self._processor)), "out": str(self.out / name),
            "export": str(self.out / name / "model"),
        }  # fmt: skip
        if start is not None:
            given["start_from"] = str(self.folder(start) / "checkpoint.pt")
        if teacher is not None:
            given["teacher"] = str(self.model(teacher))
        processes, frames = self.recipe.processes, int(section.get("batch_frames", 10))
        if self._gpus:
            # as many frames a step as all processes on a CPU would take
            processes, frames = self._gpus, max(1, round(frames * processes / self._gpus))
        given["batch_frames"] = frames
        each = TARGET_FRAME_S if role == "target" else DRAFT_FRAME_S
        seconds = float(section.get("steps", 5000)) * int(section.get("batch_frames", 10)) * each
        after = (*data, self._processor, *(stage for stage in (start, teacher) if stage is not None))
        settings = section | {"processes": self.recipe.processes, "role": role}
        words = ("pair", "--config", str(self._file(name)), *self._device)
        return self._add(Stage(name, words, settings, after, seconds, section | given, processes))

    def _answers(self, name: str, answers: Answers, data: Stage) -> Stage:
        command = ("answers", "--model", str(self.model(self.target)), "--data", str(self.folder(data)),
                   "--out", str(self.out / name), "--frames", str(answers.frames),
                   "--questions", str(answers.questions), *self._device)  # fmt: skip
        seconds = answers.frames * answers.questions * ANSWER_S
        after = (self.target, data)
        return self._add(Stage(name, command, msgspec.to_builtins(answers), after, seconds, beside=self._beside))

    def _with_file(
        self, name: str, command: str, section: Section, given: Section, after: tuple[Stage, ...], seconds: float,
        on_device: bool = True, makes: tuple[str, ...] | None = None,
    ) -> Stage:  # fmt: skip
        words = (command, "--config", str(self._file(name)), *(self._device if on_device else ()))
        # pass costs are measured on a machine that has nothing else to do
        beside = self._beside and on_device
        return self._add(Stage(name, words, section, after, seconds, section | given, makes=makes, beside=beside))

    def _exits(self, data: Sequence[Stage], held_out: Stage) -> None:
        target, held = str(self.model(self.target)), [str(self.folder(held_out))]
        section = self.recipe.exits
        seconds = int(section.get("steps", 400)) * int(section.get("batch", 1)) * EXIT_FRAME_S
        given: Section = {"target": target, "data": [str(self.folder(each)) for each in data], "held_out": held,
                          "out": str(self.out / "exits")}  # fmt: skip
        exits = self._with_file("exits", "exits", section, given, (self.target, *data, held_out), seconds)
        section = self.recipe.measure_exits
        plain = {each.name: each.default for each in msgspec.structs.fields(MeasureConfig)} | section
        seconds = (plain["prompts"] + plain["list_prompts"]) * PROMPT_S
        given = {"target": target, "draft": str(self.model(self.draft)), "exits": str(self.folder(exits)),
                 "held_out": held}  # fmt: skip
        measured = self._with_file(
            "measure-exits", "measure-exits", section, given, (exits, self.draft, held_out), seconds, makes=()
        )
        chosen = self.recipe.select_exits
        command = ("select-exits", "--exits", str(self.folder(exits)), "--out", str(self.out / "select-exits"),
                   "--profile", chosen.profile, "--budget", str(chosen.budget), "--least", str(chosen.least),
                   "--most", str(chosen.most))  # fmt: skip
        settings = msgspec.to_builtins(chosen)
        self.exits = self._add(Stage("select-exits", command, settings, (measured,), SHORT_S, beside=self._beside))

    def _fed_head(self, data: Stage, held_out: Stage) -> None:
        answers = self._answers("fed-answers", self.recipe.fed_answers, data)
        held = self._answers("fed-held-out", self.recipe.fed_held_out, held_out)
        section = self.recipe.fed_head
        given: Section = {
            "target": str(self.model(self.target)), "data": [str(self.folder(answers))],
            "held_out": [str(self.folder(held))], "draft": str(self.model(self.draft)),
            "kept": str(self.out / "kept"), "out": str(self.out / "fed-head"),
        }  # fmt: skip
        seconds = int(section.get("steps", 1200)) * FED_STEP_S + self.recipe.fed_answers.frames * KEPT_FRAME_S
        after = (answers, held, self.draft)
        self.fed_head = self._with_file(
            "fed-head", "fed-head", section, given, after, seconds, makes=("fed-head", "kept")
        )

    def _predictor(self, held_out: Stage) -> None:
        wanted = self.recipe.predictor
        command = ("predictor", "log", "--draft", str(self.model(self.draft)), "--target",
                   str(self.model(self.target)), "--data", str(self.folder(held_out)), "--out",
                   str(self.out / "drafts"), "--frames", str(wanted.frames), "--gamma", str(wanted.gamma),
                   *self._device)  # fmt: skip
        logged = {"frames": wanted.frames, "gamma": wanted.gamma}
        drafts = self._add(
            Stage("drafts", command, logged, (self.draft, self.target, held_out), wanted.frames * PROMPT_S,
                  beside=self._beside)
        )  # fmt: skip
        fitted = ("predictor", "train", "--drafts", str(self.folder(drafts)), "--out", str(self.out / "predictor"),
                   "--profile", wanted.profile, "--epochs", str(wanted.epochs))  # fmt: skip
        settings = msgspec.to_builtins(wanted)
        self.predictor = self._add(Stage("predictor", fitted, settings, (drafts,), SHORT_S, beside=self._beside))

    def _file(self, name: str) -> Path:
        return self.out / "settings" / f"{name}.yaml"
