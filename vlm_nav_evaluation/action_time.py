"""When the tokens of an answer came, by the trace of its step.

A robot as shipped waits for the whole answer (docs/evaluation.md: time to action). An answer that acts first and gives
its reasons after has named its action long before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edge_drafter import DecodingStats
from speculation.trace import Kind, Span
from vlm_nav_evaluation.figures import tpot

Arrivals = Sequence[tuple[float, int]]
"""Seconds since the step began, and how many more tokens were committed then."""


def arrivals(spans: Iterable[Span], begun: float) -> Arrivals:
    """Return when tokens came, by the trace of one step: its commits, or without any (mode edge) its draft forwards."""
    ended = sorted(spans, key=lambda span: span.end)
    commits = [(span.start - begun, int(str(span.args["tokens"]))) for span in ended if span.name == Kind.COMMIT.value]
    return commits or [(span.end - begun, 1) for span in ended if span.name == Kind.DRAFT.value]


def evenly(stats: DecodingStats) -> Arrivals:
    """Return arrivals of one token at a time from the first to the last, at equal distances."""
    first, gap = stats.first_commit_s, tpot(stats) or 0.0
    return () if first is None else tuple((first + place * gap, 1) for place in range(stats.tokens))
