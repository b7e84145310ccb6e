"""Step latency of the modes over real sockets, against a real verifier process.

What is best is searched on virtual time (`vlm_nav_evaluation.virtual_time.tuning`), at the times that the sockets have:
the declared ones, and this machine's where none are. On sockets the same search would take minutes a mode, and what a
busy machine adds to a step is more than what one candidate gains on the next.

Modes take turns on every frame, in shuffled order, so that whatever else the machine does falls on all of them: each as
shipped and at its best, `full` also without earlier answers. With a device profile the declared times are waited for on
both sides; without one (raw) the machine's own times are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.recordings import record_asked
from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S
from speculation.cost_profile import COST_FILE
from speculation.links import load_link
from speculation.predictor import OFF
from speculation.profiles import DeviceProfile, load_profile
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.cpu_cores import add_cores
from vlm_nav_evaluation.experiment.cpu_cores import described as on_cores
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Question, Run
from vlm_nav_evaluation.experiment.sockets import Edges, modes_as_arms, sockets
from vlm_nav_evaluation.figures import COLUMNS, with_ratios
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Timings
from vlm_nav_evaluation.virtual_time.timings import FREE, TABLE_9_LEAF
from vlm_nav_evaluation.virtual_time.tuning import TUNED_ON, arms_at_best

MODES = [mode.value for mode in Mode]
SPANS = 1_000_000
STEPS, QUICK_STEPS = 100, 2
CLOUD, SD, SERVER_SD = Mode.CLOUD.value, Mode.SD.value, Mode.SERVER_SD.value
SESSIONS = 32
"""Every arm with settings of its own is a robot of its own."""


def arms_of(
    options: argparse.Namespace, recording: Recording | None, timings: Timings
) -> tuple[list[Arm[Question]], dict[str, str]]:
    """Return every mode as shipped and at its best, and what the tuned ones draft by arm.

    recording: answers to tune on; None for modes as shipped alone.
    """
    trip = {} if options.rtt_ms is None else {"rtt_s": options.rtt_ms / 1e3}
    if trip:
        timings = replace(timings, one_way_s=trip["rtt_s"] / 2.0)
    arms, drafting = arms_at_best(
        options.modes, recording, timings, options.drafting, trees_alone=True, gamma=options.gamma,
        fed=options.fed_head != OFF,
    )  # fmt: skip
    found: list[Arm[Question]] = []
    for arm in arms:
        # A robot takes them as one text; of server_sd, which has none, only the depth.
        text = {"drafting": arm.changes["text"]} if "text" in arm.changes else {"gamma": arm.changes["gamma"]}
        found.append(Arm(arm.name, arm.mode, {**trip, **text}, exact=arm.mode != Mode.EDGE.value))
    return found, drafting


def to_tune_on(options: argparse.Namespace, edges: Edges, others: Sequence[Question]) -> tuple[Recording, Timings]:
    """Return the pair's answers to questions that are not measured, and the times that the sockets have."""
    head = None if options.fed_head == OFF else Path(options.fed_head)
    recording = record_asked(options, others, head=head)
    run = edges.run(modes_as_arms([CLOUD, SD]), others[:WARM_UP], others[:1])
    return recording, times_of(load_profile(options.profile), run, options.target_model)


def times_of(profile: DeviceProfile, run: Run, target: Path) -> Timings:
    """Return the times of a profile and, where it declares none, of this machine, as a run of cloud and sd had them.

    A pass that is waited for takes as long whatever its draft; one that is not costs what the target's own profile has,
    if there is one beside it. What a further leaf adds to a draft forward is not measured (`TABLE_9_LEAF`).
    """
    figures, stats = run.figures(), [*run.stats(CLOUD), *run.stats(SD)]
    draft_s, verify_s = figures[SD]["draft_forward_s"] or 0.0, figures[CLOUD]["verify_s"] or 0.0
    prefills = {
        "edge_prefill_s": [each.prefill_s for each in stats if each.prefill_s > 0.0],
        "cloud_prefill_s": [each.server_prefill_s for each in stats if each.server_prefill_s > 0.0],
    }
    timings = Timings.of(profile, **{name: median(values) for name, values in prefills.items() if values})
    timings = replace(
        timings,
        draft_s=profile.draft_s or draft_s,
        fed_s=profile.fed_s or draft_s,
        draft_leaf=0.0 if profile.draft_s else TABLE_9_LEAF,
        verify_s=profile.verify_s or verify_s,
        server_draft_s=profile.server_draft_s or profile.draft_s or draft_s,
    )
    priced = not profile.verify_s and (target / COST_FILE).is_file()
    return replace(timings.with_cost(str(target) if priced else FREE), name=f"{profile.name}, as measured")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("profile", "link", "drafting", "fed_head", "predictor", "capacity")
    line = command.experiment_line("benchmarks.latency", __doc__, STEPS, edge, QUICK_STEPS, profile="go2_a100_scaled")
    command.add_modes(line, MODES, ["cloud", "sd", "fsd", "server_sd", "full"])
    command.add_journal(line)
    line.add_argument("--rtt-ms", type=float, metavar="MS", help="round trip in place of the profile's own")
    add_cores(line)
    line.add_argument("--trace", type=Path, help="write a Chrome/Perfetto trace of the edge as shipped here")
    shown = "search nothing: every mode as shipped, on all answers (default: also each at its best, found on others)"
    line.add_argument("--as-shipped", action="store_true", help=shown)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    if options.rtt_ms is not None and not 0.0 <= options.rtt_ms <= 1e3 * MAX_RTT_S:
        raise ValueError(f"--rtt-ms {options.rtt_ms:g} is outside 0 to {1e3 * MAX_RTT_S:g}")
    print(f"{command.described(options)}; {on_cores(options.cores)}")
    others, asked = warmed_up(options, options.steps, WARM_UP if options.as_shipped else TUNED_ON)
    many, trace = ("--max-sessions", str(SESSIONS)), SPANS if options.trace else 1
    plain = [mode for mode in options.modes if mode != SERVER_SD]
    recording, timings = None, Timings()
    with ExitStack() as stack:
        edges = beside = stack.enter_context(sockets(options, plain, *many, trace=trace))
        if not options.as_shipped:
            recording, timings = to_tune_on(options, edges, others)
            print(f"tuned on virtual time, on other frames, at {timings}")
        if SERVER_SD in options.modes:
            # A draft model beside the target would change `full`, so it has a verifier of its own.
            beside = stack.enter_context(sockets(options, [SERVER_SD], *many, vlm=edges.vlm, trace=trace))
        arms, drafting = arms_of(options, recording, timings)
        sides = {arm.name: beside if arm.mode == SERVER_SD else edges for arm in arms}
        ready = [replace(arm, decode=sides[arm.name].decoder(arm)) for arm in arms]
        measured = edges.run(ready, asked, others[:WARM_UP], command.journal_of(options))
        if options.trace is not None:
            sides[arms[0].name].edge(**arms[0].changes).trace.write(options.trace)
    figures, fastest = measured.figures(), measured.fastest()
    pairs = [(arm, fastest) for arm in figures if arm != fastest]
    shown = {arm: {**entry, "drafting": f"`{drafting[arm]}`" if drafting.get(arm) else None}
             for arm, entry in with_ratios(figures).items()}  # fmt: skip
    print(markdown("mode", shown, (*COLUMNS, Column("drafting", "drafting", ""))))
    print(f"frames on which the modes' tokens differ: {measured.different} of {len(asked)}")
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
