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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.recordings import add_as_shipped, record_asked
from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S
from speculation.cost_profile import COST_FILE
from speculation.links import load_link
from speculation.predictor import OFF
from speculation.profiles import DeviceProfile, load_profile
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.processor import add_cores
from vlm_nav_evaluation.experiment.processor import described as on_cores
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Question, Run
from vlm_nav_evaluation.experiment.sockets import Edges, modes_as_arms, sockets
from vlm_nav_evaluation.figures import COLUMNS, with_ratios
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Timings
from vlm_nav_evaluation.virtual_time.timings import FREE, TABLE_9_LEAF
from vlm_nav_evaluation.virtual_time.tuning import TUNED_ON, arms_at_best

MODES = [mode.value for mode in Mode]
SPANS = 1_000_000
STEPS, QUICK_STEPS = 100, 2
CLOUD, SD, SERVER_SD = Mode.CLOUD.value, Mode.SD.value, Mode.SERVER_SD.value
RECORDED = {"exits": None, "recorded_head": None}
"""Options of a recording that a command need not have."""
SESSIONS = 32
"""Every arm with settings of its own is a robot of its own."""


class AtBest:
    """Edges on a verifier without a draft model and on one with it, and what every mode drafts at its best."""

    def __init__(
        self, edges: Edges, beside: Edges | None, recording: Recording | None, timings: Timings | None
    ) -> None:
        """Use `at_best`. recording: answers to tune on; None, as are `timings`, for modes as shipped alone."""
        self.edges = edges
        self._beside = beside
        self._recording = recording
        self.timings = timings

    def arms(self, modes: Sequence[str], rtt_s: float | None = None) -> tuple[list[Arm[Question]], dict[str, str]]:
        """Return arms, and what the tuned ones draft by arm; rtt_s: in place of the profile's round trip."""
        options, timings = self.edges.options, self.timings or Timings()
        found: list[Arm[Question]] = []
        if rtt_s is not None:
            timings = replace(timings, one_way_s=rtt_s / 2.0)
        arms, drafting = arms_at_best(
            modes, self._recording, timings, options.drafting, trees_alone=True, gamma=options.gamma,
            fed=getattr(options, "fed_head", OFF) != OFF,
        )  # fmt: skip
        trip = {} if rtt_s is None else {"rtt_s": rtt_s}
        for arm in arms:
            # A robot takes them as one text; of server_sd, which has none, only the depth.
            text = {"drafting": arm.changes["text"]} if "text" in arm.changes else {"gamma": arm.changes["gamma"]}
            found.append(Arm(arm.name, arm.mode, {**trip, **text}, exact=arm.mode != Mode.EDGE.value))
        return found, drafting

    def of(self, arm: Arm[Any]) -> Edges:
        """Return the edges whose verifier answers an arm."""
        return self._beside if arm.mode == SERVER_SD and self._beside is not None else self.edges

    def run(
        self,
        arms: Sequence[Arm[Any]],
        asked: Sequence[Question],
        before: Sequence[Question],
        journal: Journal | None = None,
    ) -> Run:
        """See `Edges.run`."""
        return self.edges.run([replace(arm, decode=self.of(arm).decoder(arm)) for arm in arms], asked, before, journal)


@contextmanager
def at_best(
    options: argparse.Namespace, modes: Sequence[str], trace: int = 1
) -> Iterator[tuple[AtBest, list[Question], list[Question]]]:
    """Yield edges with what is best for every mode, questions to warm up with, and the questions.

    `server_sd` has a verifier of its own, since a draft model beside the target would change `full`. What is tuned on
    are answers to other questions. With options.as_shipped nothing is searched. Raises as `sockets` and `warmed_up`.
    """
    others, asked = warmed_up(options, options.steps, WARM_UP if options.as_shipped else TUNED_ON)
    before, many = others[:WARM_UP], ("--max-sessions", str(SESSIONS))
    plain = [mode for mode in modes if mode != SERVER_SD]
    with sockets(options, plain, *many, trace=trace) as edges:
        recording = timings = None
        fed_head = getattr(options, "fed_head", OFF)
        if not options.as_shipped:
            head = {} if fed_head == OFF else {"recorded_head": Path(fed_head)}
            recording = record_asked(argparse.Namespace(**{**RECORDED, **vars(options), **head}), others)
            run = edges.run(modes_as_arms([CLOUD, SD]), before, before[:1])
            timings = times_of(load_profile(options.profile), run, options.target_model)
        if len(plain) == len(modes):
            yield AtBest(edges, None, recording, timings), before, asked
            return
        with sockets(options, [SERVER_SD], *many, vlm=edges.vlm, trace=trace) as beside:
            yield AtBest(edges, beside, recording, timings), before, asked


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
    edge = ("profile", "link", "drafting", "fed_head", "predictor")
    line = command.experiment_line("benchmarks.latency", __doc__, STEPS, edge, QUICK_STEPS, profile="go2_a100_scaled")
    command.add_modes(line, MODES, ["cloud", "sd", "fsd", "server_sd", "full"])
    command.add_journal(line)
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
