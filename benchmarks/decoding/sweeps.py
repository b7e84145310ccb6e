"""How many threads, how long a draft, how many exits: speed-ups and misses (Early Exits, Fig. 4, and one axis more).

Synthetic answers at the tau and the misses of the paper's GSM8K runs, and recorded ones of a target that has 25 exits,
on virtual time at the RTX's times.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.decoding.common import GSM8K_SYNTHETIC, VIRTUAL, arm_figures, declared, save
from benchmarks.decoding.plots import plot_sweeps
from benchmarks.recordings import add_recorded, first_answers, recorded_file, suffix
from edge_drafter import Mode
from edge_drafter.config import QueuePolicy
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.formulas import GAMMA, SYSTEMS
from vlm_nav_evaluation.plots import keep
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime

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
    "threads": ("threads", "threads, chosen anew before every forward"),
    "threads_fifo": ("threads", "threads, edge queue fifo"),
    "threads_finish": ("threads", "threads that finish what they began"),
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


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --recorded."""
    add_recorded(line)


def run(options: argparse.Namespace) -> None:
    """Print a table for each sweep, plot them in one figure, and save what was asked."""
    timings, axes = declared("rtx_vicuna_7b", options.cost), QUICK_AXES if options.quick else AXES
    path = recorded_file(options)
    recording = first_answers(path, options.recorded) if path else GSM8K_SYNTHETIC.draw(options.steps)
    what = path.name if path else repr(GSM8K_SYNTHETIC)
    data = swept(recording, timings, within(axes, len(recording.exit_layers)))
    print(f"{len(recording.steps)} answers: {what}\n{timings}\n{VIRTUAL}")
    print(
        f"the paper at gamma {GSM8K_RTX['gamma']}, {GSM8K_RTX['threads']} threads (Table 6): sd "
        f"{GSM8K_RTX['sd_over_cloud']}x cloud, fsd {GSM8K_RTX['fsd_over_sd']}x sd, misses {GSM8K_RTX['miss_rate']:.1%}"
    )
    for name, (key, first) in SWEEPS.items():
        print(f"\n{figures_table(first, {str(row[key]): row for row in data[name]}, COLUMNS)}")
    name = "sweeps" + suffix(path)
    exits = f"recorded answers of {len(recording.exit_layers)} exits"
    title = f"{exits}, {path.name}" if path else "GSM8K's tau and misses: synthetic answers"
    keep(plot_sweeps(data, GSM8K_RTX, timings.cost_words, title), f"decoding_{name}", options)
    save(name, options, {"kind": VIRTUAL, "answers": what, **data, "paper": GSM8K_RTX}, timings)


def swept(recording: Recording, timings: Timings, axes: Axes) -> dict[str, Any]:
    """Return a row for each number of threads, draft length and number of exits; ratios with their intervals.

    Threads as our edge has them: the likeliest branches are looked for anew before every forward, so that few do; the
    same with branches first in, first out; and as Early Exits, Algorithm 1 has them: a thread finishes the branch that
    it began, then takes the likeliest that waits.
    """
    threads, gammas, exits = axes
    whole = {"branches": MOST_THREADS, "leaves": MOST_THREADS}
    kinds: dict[str, dict[str, Any]] = {
        "threads": {},
        "threads_fifo": {"queue_policy": QueuePolicy.FIFO},
        "threads_finish": {"finish": True},
    }
    points: list[tuple[str, int, dict[str, Any]]] = [
        (name, count, {"branches": count, "leaves": count, **kind}) for name, kind in kinds.items() for count in threads
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


def within(axes: Axes, exits: int) -> Axes:
    """Return the axes for a target that has so many exits."""
    return axes[0], axes[1], (*(count for count in axes[2] if count < exits), exits)


def thinned(recording: Recording, count: int) -> Recording:
    """Return the same recording with `count` of its exits, at equal distances, the last one at the last.

    The others give no verdict. Raises ValueError for more exits than there are.
    """
    layers = recording.exit_layers
    if not 1 <= count <= len(layers):
        raise ValueError(f"{count} exits of {len(layers)}: give 1 to {len(layers)}")
    kept = [max(0, round((place + 1) * len(layers) / (count + 1)) - 1) for place in range(count)]
    kept = list(range(len(layers))) if count == len(layers) else kept
    names = ("agrees", "confidences", "wrong_choices", "exit_tokens", "exit_probabilities")
    steps = tuple(
        replace(step, **{name: getattr(step, name)[:, kept] for name in names if getattr(step, name) is not None})
        for step in recording.steps
    )
    return replace(recording, steps=steps, exit_layers=tuple(layers[place] for place in kept))
