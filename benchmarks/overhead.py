"""What the edge's policy costs: tree, cutter, controller and all that belongs to a step, against a draft forward.

Real models, a real verifier process, real sockets; modes take turns on every frame. Every call of the draft model and
of the link is timed, and what is left of a step is the policy's. Reading tokens and their probabilities off the logits
has a column of its own, because any drafter does that. The headline is CPU time of the deciding thread, which other
processes on the machine do not lengthen; wall time stands beside it. The measure is the median forward of one token in
mode sd.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.stopwatch import Part, Seconds, Stopwatch, timing
from edge_drafter import Drafter, Mode, PacedModel, StepRequest, StepResult, grower
from edge_drafter.link import ZmqLink
from evaluation.experiment import command
from evaluation.experiment.questions import add_questions, asked_of
from evaluation.experiment.run import WARM_UP, Answer, Arm, Question
from evaluation.experiment.sockets import modes_as_arms, sockets
from evaluation.figures import spread
from evaluation.setting import add_drafting, add_pair, add_predictor, add_profile, machine
from evaluation.tables import Column, figures_table
from speculation.vlm.session import VlmSession

TARGET = 0.1
"""The policy shall cost less than this share of a draft forward."""
MODES = [mode.value for mode in (Mode.SD, Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL)]
TIMED: tuple[tuple[Part, Any, tuple[str, ...]], ...] = (
    (Part.PREFILL, VlmSession, ("begin",)),
    (Part.FORWARD, VlmSession, ("root_logits", "extend")),
    (Part.CACHE, VlmSession, ("commit",)),
    (Part.PACE, PacedModel, ("root_logits", "extend")),
    (Part.LINK, ZmqLink, ("send", "receive")),
    (Part.READ, grower, ("Distributions", "propose")),
)
"""What is no policy: parts of a step, and the functions that they are made of. A step is `Drafter.run`."""
US = 1e6
COLUMNS = (
    Column("forwards", "forwards.median", ".0f"),
    Column("policy us", "policy_cpu_s", ".1f", US),
    Column("% of a forward", "share_cpu", ".1f", 100.0),
    Column("by the wall %", "share_wall", ".1f", 100.0),
    *(
        Column(f"{title} us", f"{name}_cpu_s.median", ".0f", US)
        for title, name in (
            ("reading", "read"), ("forward", "forward"), ("cache", "cache"), ("link", "link"),
            ("link threads", "other_threads"),
        )
    ),
)  # fmt: skip


@contextmanager
def stopwatch() -> Iterator[dict[str, Any]]:
    """Put every step of this process on a stopwatch; the dictionary holds the last step's times, as JSON can.

    parts: wall and CPU seconds of the deciding thread by part; single: forwards of one token; others: CPU seconds of
    other threads.
    """
    watch, last = Stopwatch(), dict[str, Any]()
    step = Drafter.run

    def run(drafter: Drafter, request: StepRequest) -> StepResult:
        others = time.process_time() - time.thread_time()
        watch.restart()
        result = step(drafter, request)
        parts = watch.stop()
        last["parts"] = {part.value: (spent.wall, spent.cpu) for part, spent in parts.items()}
        last["single"] = [(each.wall, each.cpu) for each in watch.single]
        last["others"] = max(0.0, time.process_time() - time.thread_time() - others)
        return result

    with ExitStack() as timings:
        for part, owner, names in TIMED:
            timings.enter_context(timing(watch, part, owner, *names))
        Drafter.run = run  # type: ignore[method-assign, assignment]
        try:
            yield last
        finally:
            Drafter.run = step  # type: ignore[method-assign]


def watched(arm: Arm[Question], decode: Callable[[Question], Answer], last: dict[str, Any]) -> Arm[Question]:
    """Return an arm whose answers carry the times of their step."""

    def ask(question: Question) -> Answer:
        answer = decode(question)
        return replace(answer, more=dict(last))

    return replace(arm, decode=ask)


def figures(answers: Sequence[Answer], single: Seconds) -> dict[str, Any]:
    """Return one mode's figures: seconds per draft forward as min, median and max over steps, shares of `single`.

    Raises ValueError where nothing was drafted.
    """
    drafted = [answer for answer in answers if answer.stats.draft_forwards]
    if not drafted:
        raise ValueError("no step drafted anything: there is no forward to compare with; raise gamma or max-tokens")

    def per_forward(part: Part, clock: int) -> list[float]:
        return [answer.more["parts"][part.value][clock] / answer.stats.draft_forwards for answer in drafted]

    wall, cpu = (per_forward(Part.POLICY, clock) for clock in (0, 1))
    shown = [part for part in Part if part not in (Part.PREFILL, Part.PACE)]
    return {
        "steps": len(drafted),
        "forwards": spread([float(answer.stats.draft_forwards) for answer in drafted]),
        "policy_wall_s": spread(wall),
        "share_cpu": spread([each / single.cpu for each in cpu]),
        "share_wall": spread([each / single.wall for each in wall]),
        **{f"{part.value}_cpu_s": spread(per_forward(part, 1)) for part in shown},
        "other_threads_cpu_s": spread([answer.more["others"] / answer.stats.draft_forwards for answer in drafted]),
    }


def median_forward(answers: Sequence[Answer]) -> Seconds:
    """Return the median forward of one token, each clock by itself. Raises ValueError without any."""
    single = [each for answer in answers for each in answer.more["single"]]
    if not single:
        raise ValueError("mode sd drafted no single token: there is no forward to compare with; raise gamma")
    return Seconds(*(median(times) for times in zip(*single, strict=True)))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.overhead", __doc__)
    add_pair(line)
    add_profile(line)
    command.add_steps(line, 20)
    line.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="sd is the measure, always there")
    add_drafting(line)
    add_predictor(line)
    add_questions(line)
    command.add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    options.modes = list(dict.fromkeys([Mode.SD.value, *options.modes]))
    asked = asked_of(options, options.steps)
    with sockets(options) as edges, stopwatch() as last:
        arms = [watched(arm, edges.decoder(arm), last) for arm in modes_as_arms(options.modes)]
        measured = edges.run(arms, asked, asked[:WARM_UP], command.journal_of(options))
    single = median_forward(measured.answers[Mode.SD.value])
    entries = {mode: figures(answers, single) for mode, answers in measured.answers.items()}
    print(f"{command.described(options)}; a forward of one token in sd: median {US * single.cpu:.0f} us CPU, "
          f"{US * single.wall:.0f} us by the wall")  # fmt: skip
    print("per draft forward, CPU time where nothing else is stated; median (min-max) over steps")
    print(figures_table("mode", entries, COLUMNS))
    above = [mode for mode, entry in entries.items() if entry["share_cpu"]["median"] >= TARGET]
    print(f"{TARGET:.0%} of a forward or more: {', '.join(above) or 'no mode'}")
    print(f"frames on which the modes' tokens differ: {measured.different} of {options.steps}\n{machine()}")
    data = {"forward_s": {"cpu": single.cpu, "wall": single.wall}, "modes": entries}
    command.save_run(options, "overhead", data, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
