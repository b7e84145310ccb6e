"""How many threads, how long a draft, how many exits: speed-ups and misses (Early Exits, Fig. 4, and one axis more).

Synthetic answers at the tau and the misses of the paper's GSM8K runs, on virtual time at the RTX's times.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.decoding.common import GSM8K_SYNTHETIC, VIRTUAL, arm_figures, declared, save
from benchmarks.decoding.plots import plot_sweeps
from edge_drafter import Mode
from edge_drafter.config import QueuePolicy
from evaluation.experiment.run import Arm
from evaluation.formulas import GAMMA, SYSTEMS
from evaluation.plots import keep
from evaluation.tables import Column, figures_table
from evaluation.virtual_time import Recording, Timings, VirtualTime

STEPS = (6, 1, "synthetic answers")
Axes = tuple[Sequence[int], Sequence[int], Sequence[int]]
AXES: Axes = ((1, 2, 3, 4, 5, 7, 10, 15, 20, 30), tuple(range(1, 11)), (1, 2, 3, 4, 6, 8, 10, 15, 31))
"""Threads, gammas, numbers of exits."""
QUICK_AXES: Axes = ((1, 3, 10, 30), (1, 4, 7, 10), (1, 4, 31))
MOST_THREADS = 30
GSM8K_RTX = {
    "threads": SYSTEMS["rtx_vicuna_7b"].threads, "gamma": GAMMA, "sd_over_cloud": 1.11, "fsd_over_sd": 1.08,
    "miss_rate": 12.40 / 100.0,
}  # fmt: skip
"""The only points of Fig. 4 that the paper prints in figures: Table 6 at the threads of Table 5."""
CLOUD, SD, FSD = Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value
SWEEPS = {
    "threads": ("threads", "threads, edge queue priority"),
    "threads_fifo": ("threads", "threads, edge queue fifo"),
    "gammas": ("gamma", "gamma"),
    "exits": ("exits", "exits"),
}
"""What each varies, and the title of its first column."""
COLUMNS = (
    Column("fsd x sd", "fsd_over_sd"),
    Column("sd x cloud", "sd_over_cloud"),
    Column("misses", "miss_rate", ".0%"),
    Column("mean exit", "mean_exit", ".1f"),
    Column("tau", "tau"),
)


def run(options: argparse.Namespace) -> None:
    """Print a table for each sweep, plot them in one figure, and save what was asked."""
    recording, timings = GSM8K_SYNTHETIC.draw(options.steps), declared("rtx_vicuna_7b", options.cost)
    data = swept(recording, timings, QUICK_AXES if options.quick else AXES)
    print(f"{len(recording.steps)} answers: {GSM8K_SYNTHETIC}\n{timings}\n{VIRTUAL}")
    print(
        f"the paper at gamma {GSM8K_RTX['gamma']}, {GSM8K_RTX['threads']} threads (Table 6): sd "
        f"{GSM8K_RTX['sd_over_cloud']}x cloud, fsd {GSM8K_RTX['fsd_over_sd']}x sd, misses {GSM8K_RTX['miss_rate']:.1%}"
    )
    for name, (key, first) in SWEEPS.items():
        print(f"\n{figures_table(first, {str(row[key]): row for row in data[name]}, COLUMNS)}")
    keep(plot_sweeps(data, GSM8K_RTX, timings.cost_words), "decoding_sweeps", options)
    data = {"kind": VIRTUAL, "synthetic": repr(GSM8K_SYNTHETIC), **data, "paper": GSM8K_RTX}
    save("sweeps", options, data, timings)


def swept(recording: Recording, timings: Timings, axes: Axes) -> dict[str, Any]:
    """Return a row for each number of threads, draft length and number of exits; ratios with their intervals.

    Threads with the edge's queue by priority and first in, first out: by priority the likeliest is looked for anew
    before every forward, so that few threads do; a thread of the paper keeps what it began with, as the latter does.
    """
    threads, gammas, exits = axes
    whole = {"branches": MOST_THREADS, "leaves": MOST_THREADS}
    queues = {"threads": QueuePolicy.PRIORITY, "threads_fifo": QueuePolicy.FIFO}
    points: list[tuple[str, int, dict[str, Any]]] = [
        (name, count, {"branches": count, "leaves": count, "queue_policy": policy})
        for name, policy in queues.items()
        for count in threads
    ]
    points += [("gammas", gamma, {"gamma": gamma, **whole}) for gamma in gammas]
    points += [("exits", count, {"recording": thinned(recording, count), **whole}) for count in exits]
    arms = [Arm[Any](CLOUD, CLOUD, whole), Arm[Any](SD, SD, whole)]
    arms += [Arm(f"sd {gamma}", SD, {"gamma": gamma, **whole}) for gamma in gammas]
    run = VirtualTime(recording, timings).run([*arms, *(Arm(f"{name} {n}", FSD, each) for name, n, each in points)])
    figures = arm_figures(run, timings, "miss_rate", "mean_exit", "tau")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SWEEPS}
    for name, value, _ in points:
        fsd, sd = f"{name} {value}", f"sd {value}" if name == "gammas" else SD
        ratios = {"fsd_over_sd": run.times_faster(sd, fsd), "sd_over_cloud": run.times_faster(CLOUD, sd)}
        figures[fsd].pop("ms_per_token")
        found[name].append({SWEEPS[name][0]: value, **ratios, **figures[fsd]})
    return found


def thinned(recording: Recording, count: int) -> Recording:
    """Return the same synthetic recording with `count` of its exits, at equal distances, the last one at the last.

    The others give no verdict: the first exit to name one is the first of those left that does. Raises ValueError for
    exits that were recorded, and for more exits than there are.
    """
    layers = recording.exit_layers
    if not 1 <= count <= len(layers):
        raise ValueError(f"{count} exits of {len(layers)}: give 1 to {len(layers)}")
    kept = [max(0, round((place + 1) * len(layers) / (count + 1)) - 1) for place in range(count)]
    kept = list(range(len(layers))) if count == len(layers) else kept
    steps = []
    for step in recording.steps:
        if step.agrees is None or step.confidences is None:
            raise ValueError("recorded exits cannot be left out here; use a synthetic recording")
        wrong = None if step.wrong_choices is None else step.wrong_choices[:, kept]
        agrees, confidences = step.agrees[:, kept], step.confidences[:, kept]
        steps.append(replace(step, agrees=agrees, confidences=confidences, wrong_choices=wrong))
    return replace(recording, steps=tuple(steps), exit_layers=tuple(layers[place] for place in kept))
