"""What early exits add: none, each alone, all, and one that is never wrong, beside a slow and a fast verifier.

On virtual time, without n-grams. An exit that is never wrong names the verdict with certainty: the most that exits of
that layer could ever bring.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.decoding.common import VIRTUAL, arm_figures, declared
from benchmarks.recordings import add_cost, add_recording, recorded
from edge_drafter import Mode
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, figures_table, markdown
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime

TIMES = {
    620: (0.072, 0.12),
    60: (0.007, 0.02),
    15: (0.007, 0.01),
}
"""T_q in milliseconds -> T_p and T_c in seconds."""
EXIT_SHARE = 0.018
"""What an exit adds to a verification with a short list (docs/benchmarks.md, measured on the embedded pair)."""
ALWAYS = "exit_gain=0"
NONE = "no exits"
DRAFTS = {
    "full": (Mode.FULL.value, ""),
    "full, one leaf": (Mode.FULL.value, "leaves=1,effort=1"),
    "full, chains": (Mode.FULL.value, "leaves=1,draft_tokens=0,width=1,effort=1"),
    "fsd": (Mode.FSD.value, ""),
}
COLUMNS = (
    Column("ms/token", "ms_per_token", ".1f"),
    Column("x no exits", "faster"),
    Column("tau", "tau"),
    Column("draft forwards/token", "forwards_per_token"),
)
COUNT, QUICK = 40, 6


def alone(recording: Recording, layer: int) -> Recording:
    """Return a recording that has the exit after `layer` and no other."""
    place = recording.exit_layers.index(layer)
    steps = tuple(
        replace(step, exit_tokens=step.exit_tokens[:, [place]], exit_probabilities=step.exit_probabilities[:, [place]])
        for step in recording.steps
        if step.exit_tokens is not None and step.exit_probabilities is not None
    )
    tables = {layer: recording.reliability[layer]} if layer in recording.reliability else {}
    return replace(recording, steps=steps, exit_layers=(layer,), reliability=tables)


def never_wrong(recording: Recording, layer: int) -> Recording:
    """Return a recording whose one exit, after `layer`, names the target's own token with probability 1."""
    steps = tuple(
        replace(step, exit_tokens=np.array(step.tokens)[:, None], exit_probabilities=np.ones((len(step.tokens), 1)))
        for step in recording.steps
    )
    return replace(recording, steps=steps, exit_layers=(layer,), reliability={}, short_list=None)


def exits_of(recording: Recording) -> dict[str, Recording]:
    """Return the recording with each exit alone, with all, and with one that is never wrong."""
    layers = recording.exit_layers
    return {
        **{f"exit {layer}": alone(recording, layer) for layer in layers},
        "all exits": recording,
        f"never wrong after {layers[0]}": never_wrong(recording, layers[0]),
    }


def compare(recording: Recording, timings: Timings, mode: str, text: str) -> dict[str, dict[str, Any]]:
    """Return the figures of a mode without exits, with each choice of them, and as it asks for them by itself.

    faster: how many times as fast as without exits, frame by frame.
    """
    base = ",".join(filter(None, ["ngrams=off", text]))
    arms = [Arm[Any](NONE, mode, {"text": f"{base},early_tokens=off"})]
    arms += [
        Arm[Any](name, mode, {"text": f"{base},{ALWAYS}", "recording": each})
        for name, each in exits_of(recording).items()
    ]
    if mode == Mode.FULL.value:
        arms.append(Arm[Any]("as shipped: while they pay", mode, {"text": base}))
    run = VirtualTime(recording, timings).run(arms)
    names = ("tau", "forwards_per_token")
    return {
        arm: {**row, "faster": run.times_faster(NONE, arm)}
        for arm, row in arm_figures(run, timings, *names).items()
    }  # fmt: skip


def added(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one Markdown table of all: a row for each setting and way to draft, a column for each choice of exits."""
    names = dict.fromkeys(arm for rows in found.values() for arm in rows if arm != NONE)
    rows = {name: {arm: row["faster"] for arm, row in arms.items()} for name, arms in found.items()}
    return markdown("", rows, [Column(arm, arm) for arm in names])


def show(options: argparse.Namespace) -> int:
    """Print a table for every setting and way to draft, and save what was asked."""
    recording = recorded(options, options.steps or (QUICK if options.quick else COUNT))
    go2, found = declared("go2", options.cost), dict[str, Mapping[str, Any]]()
    for verify_ms in options.verify_ms or TIMES:
        verify_s, (draft_s, one_way_s) = verify_ms / 1e3, TIMES[verify_ms]
        exit_s = options.exit_share * verify_s
        timings = replace(go2, verify_s=verify_s, draft_s=draft_s, one_way_s=one_way_s, exit_s=exit_s)
        name = f"T_q {verify_ms} ms, T_p {1e3 * draft_s:g} ms, T_c {1e3 * one_way_s:g} ms"
        for drafts, (mode, text) in DRAFTS.items():
            rows = compare(recording, timings, mode, text)
            print(f"\n{name}; {drafts}\n{figures_table('exits', rows, COLUMNS)}", flush=True)
            found[f"{name}; {drafts}"] = rows
    print(f"\ntimes as fast as without exits, median of answers\n{added(found)}")
    print(
        f"\n{len(recording.steps)} answers, n-grams off, an exit takes {options.exit_share:.1%} of a verification\n"
        f"{VIRTUAL}"
    )
    if options.save:
        settings = settings_of(options, "exits", "predictor")
        write_result("exits", {"settings": settings, "source": dict(recording.notes), "found": found})
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.exits", __doc__)
    add_outputs(line)
    add_cost(line)
    line.add_argument("--steps", type=int, help=f"recorded answers (default: {COUNT}, with --quick {QUICK})")
    line.add_argument(
        "--exit-share", type=float, default=EXIT_SHARE, help="of T_q, by each exit (default: %(default)s)"
    )
    line.add_argument("--verify-ms", type=int, action="append", choices=list(TIMES), help="T_q (default: all of these)")
    add_recording(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
