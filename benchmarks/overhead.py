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
from enum import Enum
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from edge_drafter import Drafter, Mode, PacedModel, StepRequest, StepResult
from edge_drafter.beside import Beside
from edge_drafter.link import ZmqLink
from edge_drafter.protocols import Clock
from edge_drafter.sources import model as model_source
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import WARM_UP, Answer, Question
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.tables import Column, figures_table

TARGET = 0.1
"""The policy shall cost less than this share of a draft forward."""
MODES = [mode.value for mode in Mode if mode.drafts]
US = 1e6
COLUMNS = (
    Column("forwards", "forwards.median", ".0f"),
    Column("policy us", "policy_cpu_s", ".1f", US),
    Column("% of a forward", "share_cpu", ".1f", 100.0),
    Column("wall time %", "share_wall", ".1f", 100.0),
    *(
        Column(f"{title} us", f"{name}_cpu_s.median", ".0f", US)
        for title, name in (
            ("reading", "read"), ("forward", "forward"), ("cache", "cache"), ("link", "link"),
            ("link threads", "other_threads"),
        )
    ),
)  # fmt: skip


class Part(str, Enum):
    """Where a step's time goes. POLICY is what no other part claims.

    READ: the likeliest tokens and their probabilities, by the softmax and the predictor, read off the logits; any
    drafter does that. CACHE: commits of the draft model, which move keys and values. LINK: sending (encoding included)
    and receiving, waiting too. PACE: waiting for a declared forward's end.
    """

    POLICY = "policy"
    PREFILL = "prefill"
    FORWARD = "forward"
    READ = "read"
    CACHE = "cache"
    LINK = "link"
    PACE = "pace"


class Seconds(NamedTuple):
    """Time by the wall, and by the CPU of one thread."""

    wall: float = 0.0
    cpu: float = 0.0


class Stopwatch:
    """Splits time into parts without overlap: a part inside another one interrupts it.

    Reading a thread's CPU time is a system call, which costs as much as a bit of policy, and the kernel may switch
    threads there. So each change of parts reads wall, CPU, CPU, wall: by the wall nothing in between counts for any
    part, and what one CPU reading costs, which every part contains once, is measured and subtracted.
    """

    def __init__(self, wall: Clock = time.perf_counter, cpu: Clock = time.thread_time) -> None:
        self._wall, self._cpu = wall, cpu
        self._inside: list[Part] = []
        self.single: list[Seconds] = []
        """Forwards of exactly one token since `restart`."""
        self.restart()

    def restart(self) -> None:
        """Begin again with POLICY."""
        self._spent = dict.fromkeys(Part, Seconds())
        self.single.clear()
        self._inside[:] = [Part.POLICY]
        self._since = Seconds(cpu=self._cpu(), wall=self._wall())

    def stop(self) -> dict[Part, Seconds]:
        """Return what all parts took until now."""
        self._book()
        return dict(self._spent)

    @contextmanager
    def timing(self, part: Part, owner: Any, *names: str) -> Iterator[None]:
        """Count time inside these functions of a module, or methods of a class, for `part` while the context lasts."""
        before = {name: getattr(owner, name) for name in names}
        for name, function in before.items():
            setattr(owner, name, self._timed(part, function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(owner, name, function)

    def _timed(self, part: Part, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time counted for `part`; functions among its arguments are the policy's."""

        def call(*arguments: Any) -> Any:
            self._book()  # first, so that what follows is no policy
            self._inside.append(part)
            before = self._spent[part]
            given = [self._timed(Part.POLICY, each) if callable(each) else each for each in arguments]
            try:
                result = function(*given)
            finally:
                self._book()
                self._inside.pop()
            if part is Part.FORWARD and len(arguments) > 2 and len(arguments[1]) == 1:
                after = self._spent[part]
                self.single.append(Seconds(after.wall - before.wall, after.cpu - before.cpu))
            return result

        return call

    def _book(self) -> None:
        wall, cpu = self._wall(), self._cpu()
        again = self._cpu()
        part = self._inside[-1]
        spent, since = self._spent[part], self._since
        self._spent[part] = Seconds(spent.wall + wall - since.wall, spent.cpu + (cpu - since.cpu) - (again - cpu))
        self._since = Seconds(cpu=again, wall=self._wall())


TIMED: tuple[tuple[Part, Any, tuple[str, ...]], ...] = (
    (Part.PREFILL, VlmSession, ("begin",)),
    (Part.FORWARD, VlmSession, ("root_logits", "extend")),
    (Part.CACHE, VlmSession, ("commit",)),
    (Part.PACE, PacedModel, ("root_logits", "extend")),
    (Part.LINK, ZmqLink, ("send", "receive")),
    (Part.READ, model_source, ("Distributions", "propose")),
)
"""What is no policy: parts of a step, and the functions that they are made of. A step is `Drafter.run`."""


@contextmanager
def stopwatch() -> Iterator[dict[str, Any]]:
    """Put every step of this process on a stopwatch; the dictionary holds the last step's times, as JSON can.

    parts: wall and CPU seconds of the deciding thread by part; single: forwards of one token; others: CPU seconds of
    other threads.
    """
    watch, last = Stopwatch(), dict[str, Any]()
    step, beside = Drafter.run, Beside.run

    def run(drafter: Drafter, request: StepRequest, *more: Any) -> StepResult:
        others = time.process_time() - time.thread_time()
        watch.restart()
        result = step(drafter, request, *more)
        last["parts"] = {part.value: spent for part, spent in watch.stop().items()}
        last["single"] = list(watch.single)
        last["others"] = max(0.0, time.process_time() - time.thread_time() - others)
        return result

    with ExitStack() as timings:
        for part, owner, names in TIMED:
            timings.enter_context(watch.timing(part, owner, *names))
        Drafter.run = run  # type: ignore[method-assign, assignment]
        # One stopwatch, one thread: the prefill is read where the deciding thread waits for it.
        Beside.run = lambda self, work, look: work(look)  # type: ignore[method-assign]
        try:
            yield last
        finally:
            Drafter.run = step  # type: ignore[method-assign]
            Beside.run = beside  # type: ignore[method-assign]


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
        # Of these; what they say is read by nobody.
        "abandoned": spread([float(answer.stats.abandoned) for answer in drafted]),
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
    """Return the command line; sd is the measure, which always runs."""
    return command.experiment_line(
        "benchmarks.overhead", __doc__, 20, profile="raw", modes=MODES, drafting=True, predictor=True
    )


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    options.modes = list(dict.fromkeys([Mode.SD.value, *options.modes]))
    asked = asked_of(options, options.steps)
    with sockets(options) as edges, stopwatch() as last:

        def watched(decode: Callable[[Question], Answer], question: Question) -> Answer:
            answer = decode(question)
            return replace(answer, more=dict(last))

        arms = [replace(arm, decode=partial(watched, edges.decoder(arm))) for arm in modes_as_arms(options.modes)]
        measured = edges.run(arms, asked, asked[:WARM_UP], command.journal_of(options))
    single = median_forward(measured.answers[Mode.SD.value])
    entries = {mode: figures(answers, single) for mode, answers in measured.answers.items()}
    print(f"{command.described(options)}; a forward of one token in sd: median {US * single.cpu:.0f} us CPU, "
          f"{US * single.wall:.0f} us wall time")  # fmt: skip
    print("per draft forward, CPU time where nothing else is stated; median (min-max) over steps")
    print(figures_table("mode", entries, COLUMNS))
    above = [mode for mode, entry in entries.items() if entry["share_cpu"]["median"] >= TARGET]
    print(f"{TARGET:.0%} of a forward or more: {', '.join(above) or 'no mode'}")
    print(f"frames on which the modes' tokens differ: {measured.different} of {options.steps}")
    data = {"forward_s": {"cpu": single.cpu, "wall": single.wall}, "modes": entries}
    command.finish(options, "overhead", data, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
