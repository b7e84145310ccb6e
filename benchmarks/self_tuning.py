"""Is `full`, as it is shipped, as fast as its own best fixed setting, and as every other edge mode when tuned?

    python -m benchmarks.self_tuning --recording out/embedded.npz --save

On virtual time, at a few places of the break-even map and at the Go2's times, without n-grams: memory of earlier
answers would hide what a setting is worth. Every setting decodes the same answers. Speed-ups over `cloud` are of the
time of all answers together: of forty, the median jumps by more than settings differ. With --quick: the Go2 and two
places.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.break_even import declared
from benchmarks.recordings import add_cost, add_source, source
from edge_drafter import Mode
from speculation.progress import progress
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.figures import summary
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime, load_timings

PLACES = ((0.03, 0.03), (0.03, 1.0), (0.12, 0.2), (0.3, 0.05), (0.3, 0.6), (1.0, 0.5), (3.6, 0.5))
"""T_p / T_q and T_c / T_q: from an edge far faster than the server to an Orin before a fast one."""
QUICK = 2
STEPS, QUICK_STEPS = 10, 2
"""Answers."""
CLOUD, FULL = Mode.CLOUD.value, Mode.FULL.value
FIXED: tuple[Mapping[str, Any], ...] = (
    *({"gamma": gamma} for gamma in (2, 6, 8, 12, 16)),
    *({"leaves": leaves} for leaves in (2, 16)),
    *({"draft_tokens": tokens} for tokens in (8, 20, 40)),
    {"width": 1, "draft_tokens": 0, "leaves": 1},
    {"width": 3, "leaves": 16},
    {"effort": 1.0},
)
"""Settings of `full` that are tried in place of its own."""
OTHERS = tuple(
    Arm[Any](f"{mode} {gamma}", mode, {"gamma": gamma})
    for mode in (Mode.SD.value, Mode.FSD.value, Mode.PROACTIVE.value, Mode.PIPELINED.value)
    for gamma in (2, 4, 8, 12)
)
COLUMNS = (
    Column("as shipped", "shipped"),
    Column("best fixed", "fixed"),
    Column("of it", "share", ".1%"),
    Column("with", "with", "s"),
    Column("best other", "other"),
    Column("is", "is", "s"),
    Column("wasted", "wasted", ".0%"),
    Column("CPU s/answer", "cpu_s", ".3g"),
    Column("at full effort", "all_cpu_s", ".3g"),
)


def settings(change: Mapping[str, Any]) -> str:
    """Return a change of the settings as `--drafting` takes it."""
    return ",".join(f"{name}={value}" for name, value in change.items())


def at(recording: Recording, timings: Timings) -> dict[str, Any]:
    """Return the speed-ups at one place: `full` as shipped, its best fixed setting, the best other mode of the edge."""
    own = [Arm[Any](settings(change), FULL, {"ngrams": False, **change}) for change in FIXED]
    shipped = Arm[Any]("as shipped", FULL, {"ngrams": False})
    run = VirtualTime(recording, timings).run([Arm[Any](CLOUD, CLOUD), shipped, *own, *OTHERS])
    total = {name: sum(each.total_s for each in run.stats(name)) for name in run.answers}
    faster = {name: total[CLOUD] / seconds for name, seconds in total.items()}
    best = max((shipped, *own), key=lambda arm: faster[arm.name]).name
    other = max(OTHERS, key=lambda arm: faster[arm.name]).name
    figures = summary(run.stats(shipped.name))
    return {
        "shipped": faster[shipped.name],
        "fixed": faster[best],
        "share": faster[shipped.name] / faster[best],
        "with": best,
        "other": faster[other],
        "is": other,
        "wasted": figures["wasted_forwards"],
        "cpu_s": figures["cpu_s_per_step"],
        "all_cpu_s": summary(run.stats("effort=1.0"))["cpu_s_per_step"],
        "faster": faster,
    }


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.self_tuning", __doc__)
    add_source(line)
    add_cost(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print the table, and save it where asked."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    recording = source(options)
    places = {f"{draft:g}, {way:g}": declared(draft, way, options.cost) for draft, way in PLACES}
    if options.quick:
        places = dict(list(places.items())[:QUICK])
    places = {"Go2": load_timings("go2", options.cost), **places}
    rows = {name: at(recording, timings) for name, timings in progress(places.items(), unit="place")}
    print(
        f"{len(recording.steps)} answers; times faster than cloud\n{figures_table('T_p/T_q, T_c/T_q', rows, COLUMNS)}"
    )
    if options.save:
        name = "synthetic" if options.recording is None else Path(options.recording).stem
        write_result(f"self_tuning_{name}", {"settings": settings_of(options), "places": rows})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
