"""When the action is known: the commit that completes it, which may come before the answer's end.

A robot as shipped waits for the whole answer (docs/evaluation.md: time to action). An answer that acts first and gives
its reasons after has named its action long before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from edge_drafter import DecodingStats
from speculation.prompts import parse_answer
from speculation.trace import Kind, Span
from vlm_nav_evaluation.experiment.run import Answer
from vlm_nav_evaluation.figures import spread, tpot

Words = Callable[[Sequence[int]], str]
Arrivals = Sequence[tuple[float, int]]
"""Seconds since the step began, and how many more tokens were committed then."""


def words_of(model: Path, vocabulary: int | None = None) -> Words:
    """Return what reads tokens as text, with the tokenizer of a model folder.

    vocabulary: of the recording that the tokens are from. Where it is not the tokenizer's, tokens were renumbered
    (`vlm_nav_evaluation.virtual_time.record.compact`), and nothing can be read.
    """
    from speculation.vlm.processing import Processor  # transformers, late: most tables need no words

    tokenizer = Processor.load(model).tokenizer
    if vocabulary not in (None, len(tokenizer)):
        return lambda tokens: ""
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True))


def arrivals(spans: Iterable[Span], begun: float) -> Arrivals:
    """Return when tokens came, by the trace of one step: its commits, or without any (mode edge) its draft forwards."""
    ended = sorted(spans, key=lambda span: span.end)
    commits = [(span.start - begun, int(str(span.args["tokens"]))) for span in ended if span.name == Kind.COMMIT.value]
    return commits or [(span.end - begun, 1) for span in ended if span.name == Kind.DRAFT.value]


def evenly(stats: DecodingStats) -> Arrivals:
    """Return arrivals of one token at a time from the first to the last, at equal distances."""
    first, gap = stats.first_commit_s, tpot(stats) or 0.0
    return () if first is None else tuple((first + place * gap, 1) for place in range(stats.tokens))


def action_place(tokens: Sequence[int], words: Words) -> int | None:
    """Return after how many tokens the answer's action can be read and stays so; None for an answer without one."""
    action = parse_answer(words(tokens)).action
    if action is None:
        return None
    place = len(tokens)
    while place > 1 and parse_answer(words(tokens[: place - 1])).action == action:
        place -= 1
    return place


def known_s(came: Arrivals, place: int) -> float | None:
    """Return the seconds until `place` tokens were committed; None where they never were."""
    count = 0
    for seconds, more in came:
        count += more
        if count >= place:
            return seconds
    return None


def action_s(answers: Sequence[Answer], words: Words) -> dict[str, float] | None:
    """Return the spread of the time until the action is known, over the answers that have one; None without any.

    Every answer has its arrivals in `more`.
    """
    places = [(answer, action_place(answer.tokens, words)) for answer in answers]
    known = [known_s(answer.more["arrivals"], place) for answer, place in places if place is not None]
    found = [seconds for seconds in known if seconds is not None]
    return spread(found) if found else None
