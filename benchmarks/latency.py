"""Step latency of the modes over real sockets, against a real verifier process.

Modes take turns on every frame, in shuffled order, so that whatever else the machine does falls on all of them: each as
shipped and at its best, `full` also without earlier answers. With a device profile the declared times are waited for on
both sides; without one (raw) the machine's own times are shown.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.at_best import at_best
from benchmarks.recordings import add_as_shipped
from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S
from speculation.links import load_link
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.processor import add_cores
from vlm_nav_evaluation.experiment.processor import described as on_cores
from vlm_nav_evaluation.figures import COLUMNS, with_ratios
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, markdown

MODES = [mode.value for mode in Mode]
SPANS = 1_000_000
STEPS, QUICK_STEPS = 100, 2


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line(
        "benchmarks.latency", __doc__, None, steps_default=f"{STEPS}, with --quick {QUICK_STEPS}",
        profile="go2_a100_scaled", link=True, modes=MODES, chosen=["cloud", "sd", "fsd", "server_sd", "full"],
        drafting=True, predictor=True, save=False,
    )  # fmt: skip
    line.add_argument("--rtt-ms", type=float, metavar="MS", help="round trip in place of the profile's own")
    add_cores(line)
    line.add_argument("--trace", type=Path, help="write a Chrome/Perfetto trace of the edge as shipped here")
    add_as_shipped(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    if options.rtt_ms is not None and not 0.0 <= options.rtt_ms <= 1e3 * MAX_RTT_S:
        raise ValueError(f"--rtt-ms {options.rtt_ms:g} is outside 0 to {1e3 * MAX_RTT_S:g}")
    print(f"{command.described(options)}; {on_cores(options.cores)}")
    rtt_s = None if options.rtt_ms is None else options.rtt_ms / 1e3
    with at_best(options, options.modes, trace=SPANS if options.trace else 1) as (best, before, asked):
        arms, drafting = best.arms(options.modes, rtt_s)
        measured = best.run(arms, asked, before, command.journal_of(options))
        if options.trace is not None:
            best.of(arms[0]).edge(**arms[0].changes).trace.write(options.trace)
    figures, fastest = measured.figures(), measured.fastest()
    pairs = [(arm, fastest) for arm in figures if arm != fastest]
    if best.timings is not None:
        print(f"tuned on virtual time, on other frames, at {best.timings}")
    shown = {arm: {**entry, "drafting": f"`{drafting[arm]}`" if drafting.get(arm) else None}
             for arm, entry in with_ratios(figures).items()}  # fmt: skip
    print(markdown("mode", shown, (*COLUMNS, Column("drafting", "drafting", ""))))
    print(f"frames on which the modes' tokens differ: {measured.different} of {options.steps}")
    print(command.ratio_lines(measured, pairs))
    cpu_s = measured.means("cpu_s")
    print(
        "processor time an answer, edge and verifier: " + ", ".join(f"{m} {1e3 * s:.0f} ms" for m, s in cpu_s.items())
    )
    for arm, entry in figures.items():
        if entry["early_received"]:
            print(f"{arm}: {entry['early_received']:.0f} early tokens, hits by exit layer {entry['early_hits']}")
    ratios = {f"{fast} against {slow}": measured.times_faster(slow, fast) for slow, fast in pairs}
    data = {
        "declared_link": asdict(load_link(options.link)),
        "figures": figures,
        "drafting": drafting,
        "cpu_s_per_step": cpu_s,
    }
    command.finish(options, "latency", data | {"paired_ratio_low_median_high": ratios}, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
