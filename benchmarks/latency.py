"""Step latency of the modes over real sockets, against a real verifier process.

Modes take turns on every frame, in shuffled order, so that whatever else the machine does falls on all of them. With a
device profile the declared times are waited for on both sides; without one (raw) the machine's own times are shown.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S
from evaluation.experiment import command
from evaluation.experiment.processor import add_cores
from evaluation.experiment.processor import described as on_cores
from evaluation.experiment.questions import warmed_up
from evaluation.experiment.run import WARM_UP
from evaluation.experiment.sockets import modes_as_arms, sockets
from evaluation.figures import report
from speculation.links import load_link

MODES = [mode.value for mode in Mode]
SPANS = 1_000_000


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line(
        "benchmarks.latency", __doc__, 200, profile="go2_a100_scaled", link=True, modes=MODES,
        chosen=["cloud", "sd", "fsd", "full"], drafting=True, predictor=True,
    )  # fmt: skip
    line.add_argument("--rtt-ms", type=float, metavar="MS", help="round trip in place of the profile's own")
    add_cores(line)
    line.add_argument("--trace", type=Path, help="write a Chrome/Perfetto trace of the edge here")
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    if options.rtt_ms is not None and not 0.0 <= options.rtt_ms <= 1e3 * MAX_RTT_S:
        raise ValueError(f"--rtt-ms {options.rtt_ms:g} is outside 0 to {1e3 * MAX_RTT_S:g}")
    print(f"{command.described(options)}; {on_cores(options.cores)}")
    trip = {} if options.rtt_ms is None else {"rtt_s": options.rtt_ms / 1e3}
    before, asked = warmed_up(options, options.steps, WARM_UP)
    with sockets(options, options.modes, trace=SPANS if options.trace else 1) as edges:
        measured = edges.run(modes_as_arms(options.modes, **trip), asked, before, command.journal_of(options))
        if options.trace is not None:
            edges.edge(**trip).trace.write(options.trace)
    figures, best = measured.figures(), measured.fastest()
    pairs = [(mode, best) for mode in options.modes if mode != best]
    print(report(figures))
    print(f"frames on which the modes' tokens differ: {measured.different} of {options.steps}")
    print(command.ratio_lines(measured, pairs))
    cpu_s = measured.means("cpu_s")
    print(
        "processor time an answer, edge and verifier: " + ", ".join(f"{m} {1e3 * s:.0f} ms" for m, s in cpu_s.items())
    )
    for mode, entry in figures.items():
        if entry["early_received"]:
            print(f"{mode}: {entry['early_received']:.0f} early tokens, hits by exit layer {entry['early_hits']}")
    ratios = {f"{fast} against {slow}": measured.times_faster(slow, fast) for slow, fast in pairs}
    data = {"declared_link": asdict(load_link(options.link)), "figures": figures, "cpu_s_per_step": cpu_s}
    command.finish(options, "latency", data | {"paired_ratio_low_median_high": ratios}, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
