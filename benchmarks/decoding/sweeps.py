"""How many threads, how long a draft, how many exits: speed-ups and misses (Early Exits, Fig. 4, and one axis more).

Drawn facts at the tau and the misses of the paper's GSM8K runs, on virtual time at the RTX's times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from benchmarks.analytic.early_exits import GAMMA, SYSTEMS, TABLE_6
from benchmarks.clocked import Recording, Timings, load_timings
from benchmarks.clocked.figures import figures_of, run_mode
from benchmarks.decoding.common import (
    GSM8K_FACTS,
    VIRTUAL,
    add_steps,
    interval,
    number,
    save,
    share,
    steps_of,
)
from benchmarks.decoding.pictures import draw_sweeps
from edge_drafter import DecodingStats, Mode
from edge_drafter.config import QueuePolicy
from evaluation.figures import times_faster
from evaluation.plots import add_outputs, keep
from evaluation.tables import table

THREADS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30)
GAMMAS = tuple(range(1, 11))
EXITS = (1, 2, 3, 4, 6, 8, 10, 15, 31)
QUICK_THREADS, QUICK_GAMMAS, QUICK_EXITS = (1, 3, 10, 30), (1, 4, 7, 10), (1, 4, 31)
MOST_THREADS = 30
_PRINTED = TABLE_6["GSM8K"]["rtx_vicuna_7b"]
GSM8K_RTX = {
    "threads": SYSTEMS["rtx_vicuna_7b"].threads, "gamma": GAMMA, "sd_over_cloud": _PRINTED.ar_to_sd,
    "fsd_over_sd": _PRINTED.sd_to_fsd, "miss_rate": _PRINTED.miss,
}  # fmt: skip
"""The only points of Fig. 4 that the paper prints in figures: Table 6 at the threads of Table 5."""
CLOUD, SD, FSD = Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `sweeps` takes."""
    add_outputs(line)
    add_steps(line, 6, 1, "drawn answers")


def run(options: argparse.Namespace) -> None:
    """Print a table for each sweep, draw them in one picture, and save what was asked."""
    recording, timings = GSM8K_FACTS.draw(steps_of(options)), load_timings("rtx_vicuna_7b")
    quick = options.quick
    axes = (QUICK_THREADS, QUICK_GAMMAS, QUICK_EXITS) if quick else (THREADS, GAMMAS, EXITS)
    with tqdm(total=2 + 2 * len(axes[0]) + 2 * len(axes[1]) + len(axes[2]), unit="run", disable=None) as bar:
        data = swept(recording, timings, axes, bar.update)
    print(f"{len(recording.steps)} drawn answers: {GSM8K_FACTS}\n{timings}\n{VIRTUAL}")
    print(
        f"the paper at gamma {GSM8K_RTX['gamma']}, {GSM8K_RTX['threads']} threads (Table 6): sd "
        f"{GSM8K_RTX['sd_over_cloud']}x cloud, fsd {GSM8K_RTX['fsd_over_sd']}x sd, misses {GSM8K_RTX['miss_rate']:.1%}"
    )
    for name, key in (("threads", "threads"), ("threads_fifo", "threads"), ("gammas", "gamma"), ("exits", "exits")):
        queue = f", edge queue {'fifo' if name == 'threads_fifo' else 'priority'}" if key == "threads" else ""
        print(f"\n{report(data[name], f'{key}{queue}', key)}")
    keep(draw_sweeps(data, GSM8K_RTX), "decoding_sweeps", options)
    save("sweeps", options, {"kind": VIRTUAL, "facts": repr(GSM8K_FACTS), **data, "paper": GSM8K_RTX}, timings)


def swept(
    recording: Recording,
    timings: Timings,
    axes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    tell: Callable[[], object] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """Return a row for each number of threads, draft length and number of exits; ratios with their intervals.

    Threads with the edge's queue by priority and first in, first out: by priority the likeliest is looked for anew
    before every forward, so that few threads do; a thread of the paper keeps what it began with, as the latter does.
    """
    threads, gammas, exits = axes

    def decoded(
        mode: str, source: Recording = recording, count: int = MOST_THREADS, gamma: int = 4, policy: str = "priority"
    ) -> Any:
        results = run_mode(
            mode, source, timings, branches=count, leaves=count, gamma=gamma, queue_policy=QueuePolicy(policy)
        )
        tell()
        return results

    def row(key: str, value: int, fsd: Any, sd: Any) -> dict[str, Any]:
        figures = figures_of(fsd, timings)
        return {
            key: value,
            "fsd_over_sd": times_faster(_stats(sd), _stats(fsd)),
            "sd_over_cloud": times_faster(_stats(cloud), _stats(sd)),
            **{name: figures[name] for name in ("miss_rate", "mean_exit", "tau")},
        }

    cloud, sd = decoded(CLOUD), decoded(SD)
    return {
        "threads": [row("threads", count, decoded(FSD, count=count), sd) for count in threads],
        "threads_fifo": [row("threads", count, decoded(FSD, count=count, policy="fifo"), sd) for count in threads],
        "gammas": [row("gamma", gamma, decoded(FSD, gamma=gamma), decoded(SD, gamma=gamma)) for gamma in gammas],
        "exits": [row("exits", count, decoded(FSD, thinned(recording, count)), sd) for count in exits],
    }


def _stats(results: Any) -> list[DecodingStats]:
    return [each.stats for each in results]


def thinned(recording: Recording, count: int) -> Recording:
    """Return the same drawn facts with `count` of their exits, at equal distances, the last one at the last.

    The others are silent: the first exit to name a verdict is the first of those left that does. Raises ValueError for
    facts that were recorded, and for more exits than there are.
    """
    layers = recording.exit_layers
    if not 1 <= count <= len(layers):
        raise ValueError(f"{count} exits of {len(layers)}: give 1 to {len(layers)}")
    kept = [round((place + 1) * len(layers) / (count + 1)) - 1 for place in range(count)]
    kept = list(range(len(layers))) if count == len(layers) else [max(0, place) for place in kept]
    steps = []
    for facts in recording.steps:
        if facts.agrees is None or facts.confidences is None:
            raise ValueError("exits of recorded facts cannot be left out here; draw the facts")
        wrongs = None if facts.wrongs is None else facts.wrongs[:, kept]
        agrees, confidences = facts.agrees[:, kept], facts.confidences[:, kept]
        steps.append(replace(facts, agrees=agrees, confidences=confidences, wrongs=wrongs))
    return replace(recording, steps=tuple(steps), exit_layers=tuple(layers[place] for place in kept))


def report(rows: Sequence[Mapping[str, Any]], first: str, key: str) -> str:
    """Return a table with a row for each value of `key`; `first` heads its column."""
    header = (first, "fsd x sd", "sd x cloud", "misses", "mean exit", "tau")
    return table(
        header,
        [
            (
                str(row[key]),
                interval(row["fsd_over_sd"]),
                interval(row["sd_over_cloud"]),
                share(row["miss_rate"]),
                number(row["mean_exit"], 1),
                number(row["tau"]),
            )
            for row in rows
        ],
    )
