"""When the action is known: the commit that completes it, which may come before the answer's end.

A robot as shipped waits for the whole answer (docs/evaluation.md: time to action). An answer that acts first and gives
its reasons after has said its action long before that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_drafter import DecodingStats, StepResult
from evaluation.figures import spread, tpot
from speculation.prompts import parse_answer
from speculation.trace import Kind, Span

Words = Callable[[Sequence[int]], str]
Arrivals = tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class TimedResult(StepResult):
    """A result that knows when its tokens came: seconds since the step began, and how many more were committed then."""

    arrivals: Arrivals = ()


def words_of(model: Path, vocabulary: int | None = None) -> Words:
    """Return what reads tokens as text, with the tokenizer of a model folder.

    vocabulary: of facts that the tokens are from. Where it is another than the tokenizer's, facts have numbers of their
    own (`benchmarks.clocked.record.compact`), and nothing can be read.
    """
    from speculation.vlm.processing import Processor  # transformers, late: most tables need no words

    tokenizer = Processor.load(model).tokenizer
    if vocabulary not in (None, len(tokenizer)):
        return lambda tokens: ""
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True))


def action_place(tokens: Sequence[int], words: Words) -> int | None:
    """Return after how many tokens the answer's action can be read and stays so; None for an answer without one."""
    action = parse_answer(words(tokens)).action
    if action is None:
        return None
    place = len(tokens)
    while place > 1 and parse_answer(words(tokens[: place - 1])).action == action:
        place -= 1
    return place


def arrivals(spans: Iterable[Span], begun: float) -> Arrivals:
    """Return when tokens came, by the trace of one step: its commits, or without any (mode edge) its draft forwards."""
    marks = sorted(spans, key=lambda span: span.end)
    commits = [(span.start - begun, span.args["tokens"]) for span in marks if span.name == Kind.COMMIT.value]
    found = commits or [(span.end - begun, 1) for span in marks if span.name == Kind.DRAFT.value]
    return tuple((seconds, int(str(count))) for seconds, count in found)


def timed(results: Sequence[StepResult], spans: Iterable[Span]) -> list[TimedResult]:
    """Return results of virtual time with their arrivals; the trace has steps 1, 2, ... in their order.

    Modes without commits in the trace (edge, layer_split) get one token a forward of a declared time: evenly.
    """
    steps: dict[object, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name in (Kind.STEP.value, Kind.COMMIT.value):
            steps[span.args["step"]].append(span)
    return [
        TimedResult(result.tokens, result.stats, _of_step(steps[number]) or evenly(result.stats))
        for number, result in enumerate(results, start=1)
    ]


def _of_step(spans: Sequence[Span]) -> Arrivals:
    begun = next((span.start for span in spans if span.name == Kind.STEP.value), 0.0)
    return arrivals(spans, begun)


def evenly(stats: DecodingStats) -> Arrivals:
    """Return arrivals of one token at a time from the first to the last, at equal distances."""
    first, gap = stats.first_commit_s, tpot(stats) or 0.0
    return () if first is None else tuple((first + place * gap, 1) for place in range(stats.tokens))


def known_s(result: TimedResult, place: int) -> float | None:
    """Return the seconds until `place` tokens were committed; None where they never were."""
    count = 0
    for seconds, more in result.arrivals:
        count += more
        if count >= place:
            return seconds
    return None


def action_s(results: Sequence[TimedResult], words: Words) -> dict[str, float] | None:
    """Return the spread of the time until the action is known, over the answers that have one; None without any."""
    found = []
    for result in results:
        place = action_place(result.tokens, words)
        seconds = None if place is None else known_s(result, place)
        if seconds is not None:
            found.append(seconds)
    return spread(found) if found else None
