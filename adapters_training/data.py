"""Make training frames: seeded scenes of the simulator, labelled by ground truth and oracle, in parallel processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adapters_training.records import Door, Frame, Seen, Task, write_shard
from speculation.language.prompts import in_vain, recent
from speculation.processes import worker_pool
from speculation.progress import progress
from vlm_nav_simulation.dataset import LabelledFrame, Question, Steer, sample_frames, side_by_side
from vlm_nav_simulation.ground_truth import Sighting
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.randomisation import TRAINING
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty

CAPACITY, MAX_TOKENS = 512, 96
HELD_OUT_SEED = 5_000_000
"""First scene of the held-out frames on which training is judged."""
SCENES_PER_SHARD = 25
DIFFICULTIES = (Difficulty.EASY, Difficulty.MIDDLE, Difficulty.HARD, Difficulty.HARD)
"""The mix of scenes, by seed modulo its length: full rooms twice, since a frame there asks more questions."""
LAYOUTS = (Layout.ROOM, Layout.ROOM, Layout.TWO_ROOMS, Layout.HALLWAY)
"""The mix of floor plans, each for a whole round of DIFFICULTIES."""


def convert(labelled: LabelledFrame) -> Frame:
    """Return the stored form of a simulator frame."""
    visible = {s.index: _seen(s) for s in labelled.sightings if s.visible}
    # What the grammar of an answer leaves out no robot can do, however right it is.
    possible = [one for one in labelled.questions if one.decision.action.kind not in in_vain(recent(one.done))]
    tasks = [_task(question, labelled, visible) for question in possible or labelled.questions]
    cells = labelled.cells
    return Frame(
        labelled.jpeg,
        (cells.object_class + 1).astype(np.uint8).tobytes(),
        (cells.colour + 1).astype(np.uint8).tobytes(),
        np.clip(np.nan_to_num(cells.distance) * 10, 0, 255).astype(np.uint8).tobytes(),
        list(visible.values()),
        tasks,
        tuple(Door(door.side.value, round(door.distance, 2)) for door in labelled.doorways),
        np.clip(np.array(labelled.free) * 10, 1, 255).astype(np.uint8).tobytes(),
    )


def _task(question: Question, labelled: LabelledFrame, visible: dict[int, Seen]) -> Task:
    query, index = question.query, question.object_index
    # What is right but out of view has no words in an answer; any of the kind stands for it.
    named = labelled.sightings[index] if index is not None else None
    return Task(
        named.colour if named is not None else query.colour or next(iter(COLOURS)),
        named.object_class if named is not None else query.object_class or next(iter(CLASSES)),
        visible.get(index) if index is not None else None,
        question.decision.action.text,
        question.decision.reason.value,
        question.decision.blocker or "",
        tuple(past.text for past in question.done),
        query=query.text,
        memory=question.memory,
    )


def _seen(sighting: Sighting) -> Seen:
    colour, kind = sighting.colour, sighting.object_class
    return Seen(colour, kind, sighting.side.value, round(sighting.distance, 2), sighting.pixels)


@lru_cache(maxsize=1)
def walker(model: str) -> Steer:
    """Return a trained model as who walks, asked as the robot asks it. Raises ModelFolderError."""
    from adapters_training.answers import answer_all
    from speculation.language.grammar import Grammars
    from speculation.vlm.cache import KVCache
    from speculation.vlm.load import load_vlm

    vlm = load_vlm(Path(model))
    cache, grammars = KVCache(vlm, SCENES_PER_SHARD, CAPACITY), Grammars(vlm.tokenizer, vlm.vocabulary)
    return lambda questions: answer_all(vlm, cache, questions, MAX_TOKENS, grammars)


def layout_of(seed: int, layouts: Sequence[Layout] = LAYOUTS) -> Layout:
    """Return the floor plan of a scene: each of `layouts` for a round of DIFFICULTIES."""
    return layouts[seed // len(DIFFICULTIES) % len(layouts)]


def make_shard(
    folder: Path,
    first: int,
    frames_per_scene: int,
    randomise: bool = False,
    model: str = "",
    layouts: Sequence[Layout] = LAYOUTS,
) -> int:
    """Make one shard of SCENES_PER_SHARD scenes from seed `first`; returns its number of frames (0 if it exists).

    Plain and randomised frames of the same scenes, and those on a model's own walks, may lie in one folder.
    """
    suffix = ("-walked" if model else "") + ("-randomised" if randomise else "")
    path = folder / f"seeds-{first:07d}-{first + SCENES_PER_SHARD:07d}{suffix}.msgpack"
    if path.exists():
        return 0
    randomisation = TRAINING if randomise else None
    samplers = [
        sample_frames(seed, DIFFICULTIES[seed % len(DIFFICULTIES)], frames_per_scene, randomisation,
                      layout_of(seed, layouts), steered=bool(model))
        for seed in range(first, first + SCENES_PER_SHARD)
    ]  # fmt: skip
    scenes = side_by_side(samplers, walker(model)) if model else samplers
    frames = [convert(labelled) for scene in scenes for labelled in scene]
    write_shard(path, frames)
    return len(frames)


def make(
    folder: Path,
    first_seed: int,
    scenes: int,
    frames_per_scene: int,
    processes: int,
    randomise: bool = False,
    model: str = "",
    layouts: Sequence[Layout] = LAYOUTS,
) -> None:
    """Make all shards of a seed range; shards that exist are kept, so that a killed run goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    starts = range(first_seed, first_seed + scenes, SCENES_PER_SHARD)
    with worker_pool(processes, [__name__]) as pool, progress(total=len(starts), unit="shard") as bar:
        jobs = [pool.submit(make_shard, folder, start, frames_per_scene, randomise, model, layouts) for start in starts]
        for job in as_completed(jobs):
            bar.set_postfix(frames=job.result())
            bar.update()


def add_command(commands: Any) -> None:
    """Register `data`."""
    line = commands.add_parser(
        "data",
        help="render labelled frames with the simulator's oracle",
        description=__doc__,
        epilog="Example: python -m adapters_training data --out out/data --scenes 1200 --processes 2 (about 38 frames "
        "a second and process)",
    )
    line.add_argument("--out", required=True, help="folder for the shards; those that exist are kept")
    line.add_argument(
        "--scenes", type=int, default=1000, help=f"rooms, {SCENES_PER_SHARD} a shard (default: %(default)s)"
    )
    line.add_argument("--frames-per-scene", type=int, default=24, help="(default: %(default)s)")
    line.add_argument("--first-seed", type=int, default=100_000, help="of the first room (default: %(default)s)")
    line.add_argument("--held-out", action="store_true", help=f"take seeds from {HELD_OUT_SEED} on")
    line.add_argument("--processes", type=int, default=1)
    line.add_argument(
        "--randomise", action="store_true", help="vary light, surfaces, camera and sensor (docs/simulation.md)"
    )
    line.add_argument(
        "--layouts",
        default=",".join(layout.value for layout in LAYOUTS),
        help=f"floor plans in turn, of {', '.join(layout.value for layout in Layout)} (default: %(default)s)",
    )
    line.add_argument("--walker", default="", help="model folder: this model walks, the oracle corrects it (DAgger)")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the shards that are missing. Raises ValueError for seeds that are held out or numbers below 1."""
    first = HELD_OUT_SEED if options.held_out else options.first_seed
    for name in ("scenes", "frames_per_scene", "processes"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; give at least 1")
    if not options.held_out and first + options.scenes > UNSEEN_SEED:
        raise ValueError(f"--first-seed plus --scenes must stay below {UNSEEN_SEED}: rooms above are held out")
    if options.walker:
        walker(options.walker)
    names = [name.strip() for name in options.layouts.split(",")]
    if unknown := [name for name in names if name not in list(Layout)]:
        known = ", ".join(layout.value for layout in Layout)
        raise ValueError(f"--layouts: {unknown[0]!r} is no floor plan; known are {known}")
    make(Path(options.out), first, options.scenes, options.frames_per_scene, options.processes, options.randomise,
         options.walker, [Layout(name) for name in names])  # fmt: skip
    return 0
