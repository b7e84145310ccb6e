"""A recipe: a YAML file that lists commands of this package as stages, each with its settings.

    stages:
      data: {command: data, scenes: 1300}
      target: {command: pair, torchrun: 2, data: ["{data}"], export: "{target}/model", ...}
    ships:
      target: ["{target}/model/*"]

`{NAME}` is the folder of a stage, OUT/NAME, which a command with a setting `out` is given. `expected_minutes` is how
long a stage takes on two CPU cores, `torchrun` its processes on a CPU, `config` a file of settings, relative to the
recipe, that its own override. `ships` are the files of each folder that --export writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from adapters_training import settings
from adapters_training.all_commands import by_words

_FOLDER = re.compile(r"\{([\w-]+)\}")
QUICK: Mapping[str, Mapping[str, Any]] = {
    "data": {"scenes": 25, "frames_per_scene": 2},
    # An untrained target gives no answer to learn from, so that the pair begins as the shipped one.
    "processor": {"like": "models/target"},
    "pair": {"steps": 2, "batch_frames": 2, "questions": 2, "vision_share": 0.0, "ground_share": 0.0,
             "learning_rate": 1e-6},
    "answers": {"frames": 12, "questions": 2},
    "exits": {"steps": 2, "batch": 2, "held_out_samples": 4},
    "measure-exits": {"prompts": 6, "list_prompts": 4, "repeats": 3},
    "select-exits": {"budget": 1.0},
    "fed-head": {"steps": 2, "batch": 2, "held_out_samples": 4, "depths": 2},
    "predictor log": {"frames": 20},
    "predictor train": {"epochs": 5},
    "profile-verifier": {"quick": True, "runs": 1, "warm_up": 0},
}  # fmt: skip
"""Settings of each command with which a recipe goes through every stage in minutes; what comes of it is of no use."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a recipe's file holds."""

    stages: dict[str, dict[str, Any]]
    ships: dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Stage:
    """One command of a recipe."""

    name: str
    command: str
    """The words that follow `python -m adapters_training`."""
    settings: Mapping[str, Any]
    """What its command is given; folders stand there as `{NAME}`."""
    after: tuple[Stage, ...]
    """The stages whose outputs it reads."""
    minutes: float
    processes: int
    kind: type[msgspec.Struct]

    @property
    def has_folder(self) -> bool:
        """Whether it makes a folder of its own."""
        return "out" in self.kind.__struct_fields__

    # Kept: asked anew of every stage behind it, its time doubles with each training that builds on the one before.
    @cached_property
    def identity(self) -> str:
        """Names the settings of this stage and of all that it builds on."""
        known = {"name": self.name, "command": self.command, "settings": dict(self.settings),
                 "processes": self.processes, "after": [stage.identity for stage in self.after]}  # fmt: skip
        return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()


class Plan:
    """The stages of a recipe in a folder, in their order; `gpus` is how many GPUs there are, 0: the CPU."""

    def __init__(self, path: Path, out: Path, gpus: int = 0, quick: bool = False) -> None:
        """Read a recipe and check it. Raises ValueError, naming file, stage and setting."""
        self.recipe = settings.make(Recipe, settings.read_file(path), str(path))
        self.out, self.gpus = out, gpus
        self.stages: list[Stage] = []
        for name, values in self.recipe.stages.items():
            stage = self._stage(path, name, values, quick)
            self.stages.append(stage)
            settings.make(stage.kind, self.settings_of(stage), f"{path}, stage {name}")
        for patterns in self.recipe.ships.values():
            for pattern in patterns:
                self._check_names(f"{path}, ships", pattern)

    def named(self, name: str) -> Stage:
        """Return a stage. Raises ValueError for a name that no stage has."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ValueError(f"no stage is named {name}; there are {', '.join(stage.name for stage in self.stages)}")

    def settings_of(self, stage: Stage) -> dict[str, Any]:
        """Return the settings of a stage's command, with paths for the names of folders."""
        given: dict[str, Any] = {name: self.placed(value) for name, value in stage.settings.items()}
        if stage.has_folder:
            given["out"] = str(self.out / stage.name)
        processes = self.processes_of(stage)
        if "batch_frames" in given and processes != stage.processes:
            # As many frames a step as all processes on a CPU would take.
            given["batch_frames"] = max(1, round(given["batch_frames"] * stage.processes / processes))
        return given

    def processes_of(self, stage: Stage) -> int:
        """Return with how many processes of `torchrun` a stage runs here."""
        return self.gpus if self.gpus and stage.processes > 1 else stage.processes

    def placed(self, value: Any) -> Any:
        """Return a text, or a list of them, with paths for the names of folders; anything else as it is."""
        if isinstance(value, str):
            return _FOLDER.sub(lambda found: str(self.out / found[1]), value)
        return [self.placed(each) for each in value] if isinstance(value, list) else value

    def _stage(self, path: Path, name: str, values: Mapping[str, Any], quick: bool) -> Stage:
        where, commands = f"{path}, stage {name}", by_words()
        own = dict(values)
        command, minutes, processes = own.pop("command", ""), own.pop("expected_minutes", 0.0), own.pop("torchrun", 1)
        if command not in commands:
            raise ValueError(f"{where}: command is {command!r}; give one of {', '.join(commands)}")
        if not isinstance(minutes, (int, float)) or not isinstance(processes, int) or processes < 1:
            raise ValueError(f"{where}: expected_minutes is {minutes!r} and torchrun {processes!r}; give numbers")
        if "config" in own:
            own = settings.read_file(path.parent / own.pop("config")) | own
        if quick:
            own |= QUICK.get(command, {})
            processes = 1
            if command == "pair":
                own.setdefault("start_from", f"models/{own.get('role')}")
        # Where a stage runs is no setting of it.
        for option in ("device", "out"):
            own.pop(option, None)
        before = self._check_names(where, json.dumps(own), name)
        return Stage(name, command, own, tuple(before), minutes, processes, commands[command].kind)

    def _check_names(self, where: str, text: str, own: str = "") -> list[Stage]:
        """Return the stages that a text names. Raises ValueError for one that does not come before."""
        names = set(_FOLDER.findall(text)) - {own}
        unknown = names - {stage.name for stage in self.stages}
        if unknown:
            raise ValueError(f"{where}: {', '.join(sorted(unknown))} is no stage before it")
        return [stage for stage in self.stages if stage.name in names]
