"""Step latency of the modes, as shipped, over real sockets, against a real verifier process.

Modes take turns on every frame, in shuffled order, so that whatever else the machine does falls on all of them; `full`
is there without earlier answers, too. With a device profile the declared times are waited for on both sides; without
one (raw) the machine's own times are shown. `benchmarks.tune` has the modes at their best, on virtual time.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S
from speculation.links import load_link
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.cpu_cores import add_cores
from vlm_nav_evaluation.experiment.cpu_cores import described as on_cores
from vlm_nav_evaluation.experiment.mmspec import is_mmspec, mmspec_figures
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.figures import COLUMNS, with_ratios
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import markdown
from vlm_nav_evaluation.virtual_time.tuning import NO_NGRAMS

MODES = [mode.value for mode in Mode]
STEPS, QUICK_STEPS = 100, 2
CLOUD, FULL, SERVER_SD = Mode.CLOUD.value, Mode.FULL.value, Mode.SERVER_SD.value


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("profile", "link", "drafting", "fed_head", "predictor", "capacity")
    line = command.experiment_line("benchmarks.latency", __doc__, STEPS, edge, QUICK_STEPS, profile="go2_a100_scaled")
    command.add_modes(line, MODES, ["cloud", "sd", "fsd", "server_sd", "full"])
    command.add_journal(line)
    line.add_argument("--rtt-ms", type=float, metavar="MS", help="round trip in place of the profile's own")
    add_cores(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    if options.rtt_ms is not None and not 0.0 <= options.rtt_ms <= 1e3 * MAX_RTT_S:
        raise ValueError(f"--rtt-ms {options.rtt_ms:g} is outside 0 to {1e3 * MAX_RTT_S:g}")
    print(f"{command.described(options)}; {on_cores(options.cores)}")
    before, asked = warmed_up(options, options.steps, WARM_UP)
    plain = [mode for mode in options.modes if mode != SERVER_SD]
    trip = {} if options.rtt_ms is None else {"rtt_s": options.rtt_ms / 1e3}
    with ExitStack() as stack:
        edges = beside = stack.enter_context(sockets(options, plain))
        if SERVER_SD in options.modes:
            # A draft model beside the target would change `full`, so it has a verifier of its own.
            beside = stack.enter_context(sockets(options, [SERVER_SD], vlm=edges.vlm))
        arms = modes_as_arms(options.modes, **trip)
        if FULL in options.modes:
            forgetful = ",".join(filter(None, (options.drafting, "ngrams=off")))
            arms.append(Arm(f"{FULL}, {NO_NGRAMS}", FULL, {**trip, "drafting": forgetful}))
        asked = edges.conversations(asked) if is_mmspec(options.frames) else asked
        ready = [replace(arm, decode=(beside if arm.mode == SERVER_SD else edges).decoder(arm)) for arm in arms]
        measured = edges.run(ready, asked, before, command.journal_of(options))
    figures, fastest = measured.figures(), measured.fastest()
    pairs = [(arm, fastest) for arm in figures if arm != fastest]
    print(markdown("mode", with_ratios(figures), COLUMNS))
    print(f"frames on which the modes' tokens differ: {measured.different} of {len(asked)}")
    print(command.ratio_lines(measured, pairs))
    for arm, entry in figures.items():
        if entry["early_received"]:
            print(f"{arm}: {entry['early_received']:.0f} early tokens, hits by exit layer {entry['early_hits']}")
    ratios = {f"{fast} against {slow}": measured.times_faster(slow, fast) for slow, fast in pairs}
    data: dict[str, Any] = {"declared_link": asdict(load_link(options.link)), "figures": figures}
    if CLOUD in figures:
        data |= mmspec_figures(options.frames, measured, asked, CLOUD)
    command.finish(options, "latency", data | {"paired_ratio_low_median_high": ratios}, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
