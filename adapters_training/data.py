"""Make training frames: seeded scenes of the simulator, labelled by ground truth and oracle, in parallel processes.

example (about 38 frames a second and process):
  python -m adapters_training data --out out/data --scenes 1200 --processes 2
"""

from __future__ import annotations

import os
from concurrent.futures import as_completed
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from adapters_training.records import Door, Frame, Seen, Task, write_shard
from adapters_training.settings import Command
from speculation.language.prompts import in_vain, recent
from speculation.progress import progress
from speculation.worker_processes import worker_pool
from vlm_nav_simulation.dataset import LabelledFrame, Question, Steer, sample_frames, side_by_side
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
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
    visible = {
        each.index: Seen(each.colour, each.object_class, each.side.value, round(each.distance, 2), each.pixels)
        for each in labelled.sightings
        if each.visible
    }
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


@lru_cache(maxsize=1)
def walker(model: Path) -> Steer:
    """Return a trained model as who walks, asked as the robot asks it. Raises ModelFolderError."""
    from adapters_training.answers import answer_all
    from speculation.vlm.cache import KVCache
    from speculation.vlm.load import load_vlm

    vlm = load_vlm(model)
    cache, grammars = KVCache(vlm, SCENES_PER_SHARD, CAPACITY), vlm.grammars()
    return lambda questions: answer_all(vlm, cache, questions, MAX_TOKENS, grammars)


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the command that makes frames."""

    out: Annotated[Path, Meta(description="folder for the shards; those that exist are kept")]
    scenes: Annotated[
        int, Meta(ge=1, description=f"how many rooms are made, in whole shards of {SCENES_PER_SHARD}")
    ] = 1000
    frames_per_scene: Annotated[int, Meta(ge=1, description="frames of each room")] = 24
    first_seed: Annotated[int, Meta(ge=0, description="of the first room")] = 100_000
    held_out: Annotated[bool, Meta(description=f"take seeds from {HELD_OUT_SEED} on")] = False
    processes: Annotated[int, Meta(ge=1, description="rooms that are rendered side by side")] = 1
    walker: Annotated[
        Path | None, Meta(description="model folder: this model walks, the oracle corrects it (DAgger)")
    ] = None


def make_shard(config: DataConfig, first: int) -> int:
    """Make one shard of SCENES_PER_SHARD scenes from seed `first`; returns its number of frames (0 if it exists).

    Frames of the same scenes on the teacher's walks and on a model's own may lie in one folder.
    """
    suffix = "-walked" if config.walker else ""
    path = config.out / f"seeds-{first:07d}-{first + SCENES_PER_SHARD:07d}{suffix}.msgpack"
    if path.exists():
        return 0
    samplers = [
        sample_frames(seed, DIFFICULTIES[seed % len(DIFFICULTIES)], config.frames_per_scene,
                      LAYOUTS[seed // len(DIFFICULTIES) % len(LAYOUTS)], steered=bool(config.walker))
        for seed in range(first, first + SCENES_PER_SHARD)
    ]  # fmt: skip
    scenes = side_by_side(samplers, walker(config.walker)) if config.walker else samplers
    frames = [convert(labelled) for scene in scenes for labelled in scene]
    write_shard(path, frames)
    return len(frames)


def _run(config: DataConfig) -> int:
    """Make the shards that are missing, so that a killed run goes on. Raises ValueError for seeds that are held out."""
    first = HELD_OUT_SEED if config.held_out else config.first_seed
    starts = range(first, first + config.scenes, SCENES_PER_SHARD)
    if not config.held_out and starts[-1] + SCENES_PER_SHARD > UNSEEN_SEED:
        raise ValueError(
            f"--first-seed plus --scenes, in whole shards of {SCENES_PER_SHARD}, must stay below {UNSEEN_SEED}: rooms "
            "above are held out"
        )
    if config.walker:
        walker(config.walker)
    config.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with worker_pool(config.processes, [__name__]) as pool, progress(total=len(starts), unit="shard") as bar:
        jobs = [pool.submit(make_shard, config, start) for start in starts]
        for job in as_completed(jobs):
            bar.set_postfix(frames=job.result())
            bar.update()
    return 0


COMMAND = Command("data", "render labelled frames with the simulator's oracle", __doc__, DataConfig, _run)
