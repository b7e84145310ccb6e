"""A recipe as stages: which command makes what out of what, with which settings, and how long that took before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
SETTINGS = "settings"
"""Folder of the stages' settings."""
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
    file: Section
    """Settings that its command reads from a YAML file."""
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
        held_out = self._rooms("held-out", recipe.held_out, held_out=True)
        like = {"like": recipe.processor_of} if recipe.processor_of else {}
        self._processor = self._add("processor", "processor", {"processor_of": recipe.processor_of}, like, (), SHORT_S)
        self.target = self._pair("target", "target", recipe.target, [data], None)
        walks = [data]
        for number in range(1, recipe.rounds + 1):
            first = recipe.walk.first_seed + (number - 1) * recipe.walk.scenes
            rooms = msgspec.structs.replace(recipe.walk, first_seed=first)
            walks.append(self._rooms(f"walk-{number}", rooms, (self.target,), walker=str(self.model(self.target))))
            repeated = [data, *(walk for walk in walks[1:] for _ in range(recipe.walk_times))]
            self.target = self._pair(f"target-{number}", "target", recipe.walked_target, repeated, self.target)
        teacher = self.target if recipe.taught else None
        alone = self._pair("draft", "draft", recipe.draft, walks, None, teacher)
        answered = self._answers("answers", recipe.distil_answers, data)
        self.draft = self._pair("distil", "draft", recipe.distil, [answered], alone, self.target)
        target, draft, held = str(self.model(self.target)), str(self.model(self.draft)), str(self.folder(held_out))

        section = recipe.exits
        exits = self._add(
            "exits", "exits", section,
            section | {"target": target, "data": [str(self.folder(each)) for each in walks], "held_out": [held]},
            (self.target, *walks, held_out), section.get("steps", 400) * section.get("batch", 1) * EXIT_FRAME_S,
            on_device=True, beside=True,
        )  # fmt: skip
        section = recipe.measure_exits
        plain = {each.name: each.default for each in msgspec.structs.fields(MeasureConfig)} | section
        measured = self._add(
            "measure-exits", "measure-exits", section,
            section | {"target": target, "draft": draft, "exits": str(self.folder(exits)), "held_out": [held]},
            (exits, self.draft, held_out), (plain["prompts"] + plain["list_prompts"]) * PROMPT_S,
            on_device=True, beside=True, makes=(),
        )  # fmt: skip
        section = msgspec.to_builtins(recipe.select_exits)
        self.exits = self._add("select-exits", "select-exits", section, section | {"exits": str(self.folder(exits))},
                               (measured,), SHORT_S, beside=True)  # fmt: skip

        answers = self._answers("fed-answers", recipe.fed_answers, data)
        judged = self._answers("fed-held-out", recipe.fed_held_out, held_out)
        section = recipe.fed_head
        self.fed_head = self._add(
            "fed-head", "fed-head", section,
            section | {"target": target, "data": [str(self.folder(answers))], "held_out": [str(self.folder(judged))],
                       "draft": draft, "kept": str(self.out / "kept")},
            (answers, judged, self.draft),
            section.get("steps", 1200) * FED_STEP_S + recipe.fed_answers.frames * KEPT_FRAME_S,
            on_device=True, beside=True, makes=("fed-head", "kept"),
        )  # fmt: skip

        wanted = recipe.predictor
        logged = {"frames": wanted.frames, "gamma": wanted.gamma}
        drafts = self._add(
            "drafts", "predictor log", logged, logged | {"draft": draft, "target": target, "data": held},
            (self.draft, self.target, held_out), wanted.frames * PROMPT_S, on_device=True, beside=True,
        )  # fmt: skip
        fitted = {"drafts": str(self.folder(drafts)), "profile": wanted.profile, "epochs": wanted.epochs}
        self.predictor = self._add("predictor", "predictor train", msgspec.to_builtins(wanted), fitted, (drafts,),
                                   SHORT_S, beside=True)  # fmt: skip
        # pass costs are measured on a machine that has nothing else to do
        self.pass_cost = self._add("pass-cost", "profile-verifier", recipe.pass_cost,
                                   recipe.pass_cost | {"target": target}, (self.target,), PASS_COST_S)  # fmt: skip

    def _add(
        self, name: str, command: str, known: Section, file: Section, after: Sequence[Stage], seconds: float, *,
        words: Sequence[str] = (), on_device: bool = False, beside: bool = False, processes: int = 1,
        makes: tuple[str, ...] | None = None,
    ) -> Stage:  # fmt: skip
        """Append a stage: `known` decides what it makes, `file` are its command's settings."""
        path = self.out / SETTINGS / f"{name}.yaml"
        line = (*command.split(), "--config", str(path), *words, *(self._device if on_device else ()))
        # a GPU is one for all stages
        beside = beside and not self._gpus
        if name != "measure-exits":
            file = file | {"out": str(self.out / name)}
        stage = Stage(name, line, known, tuple(after), seconds, file, processes, makes, beside)
        self.stages.append(stage)
        return stage

    def _rooms(self, name: str, rooms: Rooms, after: tuple[Stage, ...] = (), **given: Any) -> Stage:
        known: Section = msgspec.to_builtins(rooms)
        file = {key: value for key, value in known.items() if key != "options"} | {"processes": cores()} | given
        seconds = rooms.scenes * rooms.frames_per_scene * (ANSWER_S if after else FRAME_S) / cores()
        return self._add(name, "data", known, file, after, seconds, words=rooms.options)

    def _pair(
        self, name: str, role: str, section: Section, data: Sequence[Stage], start: Stage | None,
        teacher: Stage | None = None,
    ) -> Stage:  # fmt: skip
        given: Section = {
            "role": role, "data": [str(self.folder(each)) for each in data],
            "processor": str(self.folder(self._processor)), "export": str(self.out / name / "model"),
        }  # fmt: skip
        if start is not None:
            given["start_from"] = str(self.folder(start) / "checkpoint.pt")
        if teacher is not None:
            given["teacher"] = str(self.model(teacher))
        processes, frames = self.recipe.processes, int(section.get("batch_frames", 10))
        seconds = section.get("steps", 5000) * frames * (TARGET_FRAME_S if role == "target" else DRAFT_FRAME_S)
        if self._gpus:
            # as many frames a step as all processes on a CPU would take
            processes, frames = self._gpus, max(1, round(frames * processes / self._gpus))
        given["batch_frames"] = frames
        after = (*data, self._processor, *(stage for stage in (start, teacher) if stage is not None))
        known = section | {"processes": self.recipe.processes, "role": role}
        return self._add(name, "pair", known, section | given, after, seconds, on_device=True, processes=processes)

    def _answers(self, name: str, answers: Answers, data: Stage) -> Stage:
        known: Section = msgspec.to_builtins(answers)
        given = known | {"model": str(self.model(self.target)), "data": str(self.folder(data))}
        seconds = answers.frames * answers.questions * ANSWER_S
        return self._add(name, "answers", known, given, (self.target, data), seconds, on_device=True, beside=True)
