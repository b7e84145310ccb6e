"""What drafting gains: a run's own questions asked again in several modes, at the declared times of a robot and a GPU.

While the robot drives, its verifier shares this machine with it, and no time of theirs says anything about a Go2 and a
server. Here every forward and message takes at least its declared time (`speculation.profiles`), as in
`replay --profile`, and all modes answer the same questions.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from edge_drafter import Mode
from speculation.links import load_link
from speculation.profiles import RAW, load_profile
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, Run, take_turns
from vlm_nav_evaluation.experiment.sockets import Edges, sockets
from vlm_nav_evaluation.figures import with_ratios
from vlm_nav_evaluation.html_page import Section, embedded, png
from vlm_nav_evaluation.plots import MODE_COLOURS, bar_plot
from vlm_nav_evaluation.replay.report import not_kept
from vlm_nav_evaluation.report.run import Decision
from vlm_nav_evaluation.report.timeline import Step, plot_steps, steps
from vlm_nav_evaluation.tables import MS, Column, cells_of, table

PROFILE = "go2_a100_scaled"
"""Declared times of a run that declares none itself."""
BUDGET_S, LEAST = 24.0, 2
"""No question more is asked after so many seconds, once so many are answered."""
FORGETFUL = "full, earlier answers off"
"""Frames of one run are alike, and `full` proposes what it has answered before: a row of its own shows it without."""
ARMS = (
    *(Arm(mode.value, mode.value, {"mode": mode.value}) for mode in (Mode.CLOUD, Mode.SD, Mode.FULL)),
    Arm(FORGETFUL, Mode.FULL.value, {"mode": Mode.FULL.value, "drafting": "ngrams=off"}),
)
COLUMNS = (
    Column("time to action, ms", "total_s", ".0f", MS),
    Column("times as fast as cloud", "speed_up", ".2f"),
    Column("passes of the big model a token", "passes_per_token"),
)


@dataclass(frozen=True)
class Gain:
    """What was measured."""

    run: Run
    conditions: str
    """The declared times and link, in words."""
    timelines: Mapping[str, Step]
    """One question's answer by mode."""
    late: Sequence[str] = ()
    """A sentence for each declared time that this machine could not keep."""

    @property
    def title(self) -> str:
        """Return what the table shows, in a sentence."""
        same = "all answers equal" if not self.run.different else f"{self.run.different} ANSWERS DIFFER"
        return f"{len(self.run.names)} frames of this run asked again, {self.conditions}: {same}"

    def text(self) -> str:
        """Return the table for the screen."""
        header, *rows = self._cells()
        return "\n".join([self.title, *self.late, table(header, rows)])

    def section(self) -> Section:
        """Return the part of a report: the table, its bars, and one answer in `cloud` above the same in `full`."""
        plots = [(embedded(png(self._bars())), "time to the action by mode")]
        plots.append((embedded(png(plot_steps(self.timelines))), "one answer by the cloud alone, and drafted"))
        return Section("What drafting gains", self.title, rows=self._cells(), plots=plots, lines=self.late)

    def _cells(self) -> list[list[str]]:
        return cells_of("mode", with_ratios(self.run.figures()), COLUMNS)

    def _bars(self) -> Figure:
        figures = with_ratios(self.run.figures())
        names = list(figures)
        figure, axes = bar_plot(0.6 + 0.5 * len(names), names, self.conditions, "median time to the action, ms")
        for row, (name, entry) in enumerate(figures.items()):
            ms = MS * entry["total_s"]["median"]
            axes.barh(row, ms, 0.6, color=MODE_COLOURS[Mode.FULL.value if name == FORGETFUL else name])
            axes.annotate(f"{entry['speed_up']:.2f} x", (ms, row), (4, 0), textcoords="offset points", va="center")
        axes.margins(x=0.12)
        return figure


def questions(decisions: Sequence[Decision], prompts: Mapping[int, str]) -> list[Question]:
    """Return what a run asked, by the stamps of its frames (ns), in an order that is the same each time."""
    asked = [
        Question(prompts[each.stamp_ns], each.frame, str(each.step))
        for each in decisions
        if each.frame is not None and each.stamp_ns in prompts
    ]
    random.Random(0).shuffle(asked)
    return asked


def measure(asked: Sequence[Question], options: argparse.Namespace) -> Gain:
    """Ask again in every arm, for `BUDGET_S`, and return what it took.

    options: target_model, draft_model, profile and link; a raw profile is replaced by `PROFILE`. The last question
    warms up and is not measured. Raises ValueError for fewer than two questions, RuntimeError or VerifierLost where
    the verifier does not serve.
    """
    if len(asked) < 2:
        raise ValueError(f"the run asked {len(asked)} questions that its bag has frames of; 2 are needed to compare")
    profile = load_profile(options.profile if options.profile not in ("", RAW.name) else PROFILE)
    link = f", link {options.link} ({load_link(options.link).scale})" if options.link else ""
    own = argparse.Namespace(
        target_model=options.target_model, draft_model=options.draft_model, profile=profile.name, link=options.link
    )
    kept: dict[tuple[str, str], Step] = {}
    with sockets(own, [arm.mode for arm in ARMS]) as edges:
        arms = [_traced(arm, edges, kept) for arm in ARMS]
        run = take_turns(arms, _in_time(asked[:-1]), warm_up=asked[-1:])
    ratios = dict(zip(run.ratios(Mode.CLOUD.value, Mode.FULL.value), run.names, strict=True))
    shown = ratios[sorted(ratios)[len(ratios) // 2]]
    timelines = {mode.value: kept[shown, mode.value] for mode in (Mode.CLOUD, Mode.FULL)}
    figures = run.figures().values()
    late = not_kept({
        "a draft forward": [(each["draft_forward_s"], profile.draft_s) for each in figures],
        "a target forward": [(each["verify_s"], profile.verify_s) for each in figures],
    })  # fmt: skip
    return Gain(run, f"declared times {profile.name} ({profile.scale}){link}", timelines, late)


def _traced(arm: Arm, edges: Edges, kept: dict[tuple[str, str], Step]) -> Arm:
    """Return the arm with a decoder that keeps the time line of each answer, by question and arm."""
    decode, trace = edges.decoder(arm), edges.edge(**arm.changes).trace

    def ask(question: Question) -> Answer:
        answer = decode(question)
        kept[question.name, arm.name] = steps(trace.spans)[-1]
        return answer

    return Arm(arm.name, decode=ask)


def _in_time(asked: Sequence[Question]) -> Iterator[Question]:
    until = time.monotonic() + BUDGET_S
    for count, question in enumerate(asked):
        if count >= LEAST and time.monotonic() > until:
            return
        yield question
