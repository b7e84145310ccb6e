"""Make training frames: seeded scenes of the simulator, labelled by ground truth and oracle, in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from tqdm import tqdm

from adapters_training.records import Frame, Seen, Task, write_shard
from simulation.dataset import LabelledFrame, sample_frames
from simulation.ground_truth import Sighting
from simulation.randomisation import TRAINING
from simulation.scene import Difficulty

SCENES_PER_SHARD = 25
DIFFICULTIES = (Difficulty.EASY, Difficulty.MIDDLE, Difficulty.HARD, Difficulty.HARD)
"""The mix of scenes, by seed modulo its length: full rooms twice, since a frame there asks more questions."""


def convert(labelled: LabelledFrame) -> Frame:
    """Return the stored form of a simulator frame."""
    visible = {s.index: _seen(s) for s in labelled.sightings if s.visible}
    tasks = [
        Task(
            question.target.colour,
            question.target.object_class,
            visible.get(question.object_index) if question.object_index is not None else None,
            question.decision.action.text,
            question.decision.reason.value,
            question.decision.blocker or "",
        )
        for question in labelled.questions
    ]
    cells = labelled.cells
    return Frame(
        labelled.jpeg,
        (cells.object_class + 1).astype(np.uint8).tobytes(),
        (cells.colour + 1).astype(np.uint8).tobytes(),
        np.clip(np.nan_to_num(cells.distance) * 10, 0, 255).astype(np.uint8).tobytes(),
        list(visible.values()),
        tasks,
    )


def _seen(sighting: Sighting) -> Seen:
    return Seen(sighting.colour, sighting.object_class, sighting.side.value, round(sighting.distance, 2))


def make_shard(folder: Path, first: int, frames_per_scene: int, randomise: bool = False) -> int:
    """Make one shard of SCENES_PER_SHARD scenes from seed `first`; returns its number of frames (0 if it exists).

    Plain and randomised frames of the same scenes may lie in one folder.
    """
    suffix = "-randomised" if randomise else ""
    path = folder / f"seeds-{first:07d}-{first + SCENES_PER_SHARD:07d}{suffix}.msgpack"
    if path.exists():
        return 0
    frames: list[Frame] = []
    for seed in range(first, first + SCENES_PER_SHARD):
        difficulty = DIFFICULTIES[seed % len(DIFFICULTIES)]
        randomisation = TRAINING if randomise else None
        sampled = sample_frames(seed, difficulty, frames_per_scene, randomisation=randomisation)
        frames += [convert(labelled) for labelled in sampled]
    write_shard(path, frames)
    return len(frames)


def make(folder: Path, first_seed: int, scenes: int, frames_per_scene: int, processes: int,
         randomise: bool = False) -> None:  # fmt: skip
    """Make all shards of a seed range; shards that exist are kept, so that a killed run goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    starts = range(first_seed, first_seed + scenes, SCENES_PER_SHARD)
    # A forked child would share its parent's GL context.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool, tqdm(total=len(starts), unit="shard") as bar:
        jobs = [pool.submit(make_shard, folder, start, frames_per_scene, randomise) for start in starts]
        for job in as_completed(jobs):
            bar.set_postfix(frames=job.result())
            bar.update()
