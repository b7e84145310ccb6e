"""Every setting of the recipe. A section of a command with settings of its own takes just these, and `config`, a YAML
file (relative to the recipe's) that they override; folders, device and processes are the recipe's business."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from adapters_training import settings
from adapters_training.exit_choice.config import MeasureConfig
from adapters_training.exits import ExitsConfig
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.pair import PairConfig
from adapters_training.verifier_profile.config import ProfileConfig

Section = dict[str, Any]
FILE = "config"


class Rooms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rooms of the simulator (command data)."""

    scenes: Annotated[int, Meta(ge=1, description="rooms; a shard holds 25")]
    frames_per_scene: Annotated[int, Meta(ge=1, description="frames of each")] = 24
    first_seed: Annotated[int, Meta(ge=0, description="of the first room; held-out ones have seeds of their own")] = (
        100_000
    )
    options: Annotated[tuple[str, ...], Meta(description="further options of the command, as --randomise")] = ()


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target's own answers (command answers)."""

    frames: Annotated[int, Meta(ge=1, description="about how many frames")]
    questions: Annotated[int, Meta(ge=1, description="a frame")] = 4


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which exits are kept (command select-exits)."""

    profile: Annotated[str, Meta(description="device profile to choose for; raw: this machine's times")] = "raw"
    budget: Annotated[float, Meta(gt=0, description="what all exits may add, as a share of a verification")] = 0.1
    least: Annotated[int, Meta(ge=1, description="exits at least")] = 3
    most: Annotated[int, Meta(ge=1, description="exits at most")] = 6


class Predictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The acceptance predictor (commands predictor log and train)."""

    frames: Annotated[int, Meta(ge=1, description="frames whose drafts are logged")] = 600
    gamma: Annotated[int, Meta(ge=1, le=64, description="longest draft of the log")] = 8
    profile: Annotated[str, Meta(description="times for the threshold")] = "go2_a100"
    epochs: Annotated[int, Meta(ge=1, description="of the network at most")] = 100


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of one pair."""

    data: Rooms
    held_out: Rooms
    processor_of: Annotated[
        str, Meta(description="model folder whose tokenizer and frame size are kept; none: the tokenizer is trained")
    ] = ""
    processes: Annotated[
        int,
        Meta(ge=1, description="of a training of target or draft on a CPU; GPUs share the frames of all of them"),
    ] = 2
    target: Annotated[Section, Meta(description="command pair")]
    rounds: Annotated[
        int, Meta(ge=0, le=20, description="times that the target walks, is corrected, and goes on learning (DAgger)")
    ] = 0
    walk: Rooms = Rooms(scenes=200, first_seed=400_000)
    walk_times: Annotated[
        int, Meta(ge=1, le=10, description="how often a frame of a walk is learned from for once of the other rooms")
    ] = 1
    walked_target: Annotated[Section, Meta(description="command pair, of each round")] = {}
    draft: Annotated[Section, Meta(description="command pair; the target teaches it if taught is true")]
    taught: Annotated[bool, Meta(description="whether the draft has the target as its teacher from the beginning")] = (
        False
    )
    distil_answers: Answers
    distil: Annotated[Section, Meta(description="command pair: the draft goes on with the target's own answers")]
    exits: Annotated[Section, Meta(description="command exits")]
    measure_exits: Annotated[Section, Meta(description="command measure-exits")] = {}
    select_exits: Selection = Selection()
    fed_answers: Answers
    fed_held_out: Answers
    fed_head: Annotated[Section, Meta(description="command fed-head")]
    predictor: Predictor = Predictor()
    pass_cost: Annotated[Section, Meta(description="command profile-verifier")] = {}
    weights_mb: Annotated[float, Meta(gt=0, description="all weights that ship, at most; 1 MB = 1,000,000 bytes")] = 32


KINDS: dict[str, type[msgspec.Struct]] = {
    "target": PairConfig, "walked_target": PairConfig, "draft": PairConfig, "distil": PairConfig,
    "exits": ExitsConfig, "measure_exits": MeasureConfig, "fed_head": FedHeadConfig, "pass_cost": ProfileConfig,
}  # fmt: skip
"""Sections that are settings of a command."""
GIVEN = frozenset({
    "role", "data", "processor", "out", "export", "teacher", "target", "held_out", "draft", "kept", "device", "workers",
    "threads",
})  # fmt: skip
"""Settings of these commands that the recipe gives."""
ANY: dict[str, Any] = {
    "role": "target", "data": ("-",), "processor": "-", "out": "-", "target": "-", "draft": "-", "exits": "-",
    "held_out": ("-",),
}  # fmt: skip
"""Stand-ins for what a section must leave out, to check the rest of it."""


def load(path: Path) -> Recipe:
    """Return a recipe with its sections complete and checked. Raises ValueError, naming file, section and setting."""
    recipe = settings.make(Recipe, settings.read_file(path), str(path))
    sections = {name: _section(name, kind, getattr(recipe, name), path) for name, kind in KINDS.items()}
    return msgspec.structs.replace(recipe, **sections)


def _section(name: str, kind: type[msgspec.Struct], given: Section, path: Path) -> Section:
    where = f"{path}, section {name}"
    held = settings.read_file(path.parent / given[FILE]) if FILE in given else {}
    held = {key: value for key, value in held.items() if key not in GIVEN}
    own = {key: value for key, value in given.items() if key != FILE}
    refused = sorted(GIVEN & set(own))
    if refused:
        raise ValueError(f"{where}: leave out {', '.join(refused)}, which the recipe gives")
    known = {field: value for field, value in ANY.items() if field in kind.__struct_fields__}
    settings.make(kind, known | held | own, where)
    return held | own


def quick(recipe: Recipe) -> Recipe:
    """Return a recipe that goes through every stage in minutes; what comes of it is of no use.

    It begins with the shipped models: an untrained target gives no answer to learn from.
    """
    few = {"steps": 2, "batch_frames": 2, "questions": 2, "vision_share": 0.0, "ground_share": 0.0,
           "learning_rate": 1e-6}  # fmt: skip
    frozen = {"steps": 2, "batch": 2, "minutes": 0.0, "held_out_samples": 4}
    return msgspec.structs.replace(
        recipe,
        data=msgspec.structs.replace(recipe.data, scenes=25, frames_per_scene=2),
        held_out=msgspec.structs.replace(recipe.held_out, scenes=25, frames_per_scene=2),
        processor_of="models/target",
        processes=1,
        target=recipe.target | few | {"start_from": "models/target"},
        rounds=min(1, recipe.rounds),
        walk=msgspec.structs.replace(recipe.walk, scenes=25, frames_per_scene=1),
        walked_target=recipe.walked_target | few,
        draft=recipe.draft | few | {"start_from": "models/draft"},
        distil_answers=Answers(frames=12, questions=2),
        distil=recipe.distil | few,
        exits=recipe.exits | frozen,
        measure_exits=recipe.measure_exits | {"prompts": 6, "list_prompts": 4, "repeats": 3},
        select_exits=msgspec.structs.replace(recipe.select_exits, budget=1.0),
        fed_answers=Answers(frames=12, questions=2),
        fed_held_out=Answers(frames=6, questions=2),
        fed_head=recipe.fed_head | frozen | {"depths": 2},
        predictor=msgspec.structs.replace(recipe.predictor, frames=20, epochs=5),
        pass_cost=recipe.pass_cost | {"quick": True, "runs": 1, "warm_up": 0, "bootstraps": 10},
    )
