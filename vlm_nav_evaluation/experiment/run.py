"""Arms, questions and the loop in which arms take turns; what was measured is a `Run`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from edge_drafter import DecodingStats, StepResult
from speculation.progress import progress
from speculation.wire import Jpegs
from vlm_nav_evaluation.figures import median_interval, summary
from vlm_nav_evaluation.journal import Journal

WARM_UP = 2
"""Answers of every arm that are not counted: first forwards pay for what libraries put off."""


@dataclass(frozen=True)
class Question:
    """One step: a prompt about a frame, or about several."""

    prompt: str
    jpeg: Jpegs
    """Empty for a language model alone; several frames are a tuple, the oldest first."""
    name: str = ""
    """Identifies the question in a journal and in reports; empty: its number in the run."""
    category: str = ""
    """What it is counted with in `mmspec.counted`."""
    later: tuple[str, ...] = ()
    """What is asked after its answer in the same conversation (`sockets.Edges.conversations`)."""


@dataclass(frozen=True)
class Answer(StepResult):
    """The answer to one question."""

    more: Mapping[str, Any] = field(default_factory=dict)
    """What else the arm measured, as JSON can hold it."""


@dataclass(frozen=True)
class Arm:
    """One way to decode that is compared with others."""

    name: str
    mode: str = ""
    """The mode that the backend's decoder decodes in."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the settings that all arms of the backend share."""
    decode: Callable[[Question], Answer] | None = None
    """A decoder of another kind, e.g. transformers' generate, in place of the backend's."""
    exact: bool = True
    """Its tokens must be those of all other exact arms."""
    optional: bool = False
    """It may refuse a question with ValueError; it is then left out, with its reason in `Run.refused`."""


@dataclass(frozen=True)
class Run:
    """What an experiment measured: every arm's answers to the same questions, in the same order."""

    answers: Mapping[str, Sequence[Answer]]
    names: Sequence[str] = ()
    """The questions."""
    exact: Sequence[str] = ()
    """The arms whose tokens must be equal."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Arms that were left out, and why."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Questions that some arm could not answer, and why."""

    def stats(self, arm: str) -> list[DecodingStats]:
        """Return an arm's figures, question by question."""
        return [answer.stats for answer in self.answers[arm]]

    def seconds(self, arm: str) -> list[float]:
        """Return how long an arm took for each question."""
        return [each.total_s for each in self.stats(arm)]

    @property
    def different(self) -> int:
        """Return the number of questions on which the tokens of exact arms differ."""
        arms = [self.answers[arm] for arm in self.exact if arm in self.answers]
        return sum(len({answer.tokens for answer in answers}) > 1 for answers in zip(*arms, strict=True))

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return every arm's `summary`."""
        return {arm: summary(self.stats(arm)) for arm in self.answers}

    def ratios(self, slow: str, fast: str) -> list[float]:
        """Return the time of `slow` over that of `fast`, question by question."""
        return [one / other for one, other in zip(self.seconds(slow), self.seconds(fast), strict=True)]

    def times_faster(self, slow: str, fast: str) -> tuple[float, float, float]:
        """Return how many times faster `fast` is, question by question: `median_interval` of the ratios."""
        return median_interval(self.ratios(slow, fast))

    def fastest(self) -> str:
        """Return the arm with the shortest median step."""
        return min(self.answers, key=lambda arm: median(self.seconds(arm)))


def take_turns(
    arms: Sequence[Arm],
    asked: Iterable[Question],
    warm_up: Sequence[Question] | None = None,
    *,
    seed: int = 0,
    journal: Journal | None = None,
    leave_out: bool = False,
    total: int | None = None,
) -> Run:
    """Let arms with a decoder answer every question, in an order that is shuffled for each question.

    So whatever else the machine does falls on all arms alike. warm_up: what every arm answers first, not counted; None:
    the first question, `WARM_UP` times. journal: answers that it has are not asked for again, new ones are added at
    once. leave_out: a question that an arm refuses with ValueError is left out; otherwise the error is raised, but for
    optional arms. total: the number of questions, where `asked` has no length.
    """
    answers = read_answers(journal) if journal is not None else {}
    refused, left_out, names, warm = dict[str, str](), dict[str, str](), list[str](), False

    def ask(arm: Arm, question: Question) -> Answer | None:
        """Return the answer; None of an optional arm that refuses, now or before."""
        if arm.decode is None:
            raise TypeError(f"arm {arm.name} has no decoder; a backend makes one")
        try:
            return arm.decode(question) if arm.name not in refused else None
        except ValueError as error:
            if not arm.optional:
                raise
            refused[arm.name] = " ".join(str(error).split())
            return None

    for index, question in enumerate(progress(asked, total=total, unit="frame")):
        names.append(name := question.name or str(index))
        order = [arm for arm in arms if (name, arm.name) not in answers and arm.name not in refused]
        random.Random(f"{seed} {index}").shuffle(order)
        try:
            if order and not warm:
                for arm in arms:
                    for first in [question] * WARM_UP if warm_up is None else warm_up:
                        ask(arm, first)
                warm = True
            for arm in order:
                if (answer := ask(arm, question)) is not None:
                    answers[name, arm.name] = answer
                    if journal is not None:
                        fields = msgspec.to_builtins(answer, str_keys=True)
                        journal.add({"question": name, "arm": arm.name, **fields})
        except ValueError as error:
            if not leave_out:
                raise
            left_out[name] = str(error)
    kept = [name for name in names if name not in left_out]
    present = [arm for arm in arms if arm.name not in refused]
    found = {arm.name: [answers[name, arm.name] for name in kept] for arm in present}
    return Run(found, kept, [arm.name for arm in present if arm.exact], refused, left_out)


def read_answers(journal: Journal) -> dict[tuple[str, str], Answer]:
    """Return a journal's answers by question and arm. Raises ValueError for a line that holds none."""
    found = {}
    for number, piece in enumerate(journal.pieces(), start=1):
        try:
            found[piece["question"], piece["arm"]] = msgspec.convert(piece, Answer, strict=False)
        except (msgspec.ValidationError, LookupError) as error:
            why = f"line {number} of the journal is no answer ({error!r}); begin anew with --restart"
            raise ValueError(why) from None
    return found
