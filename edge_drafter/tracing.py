"""What a step tells its trace: every span carries the step's number, and the round that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edge_drafter.speculator import Landing, Speculator
from edge_drafter.stats import ESTIMATES, DecodingStats
from speculation.trace import Kind, Lane, Trace
from speculation.wire import Commit, EarlyTokens


class StepTrace:
    """The spans of one step, which began at `begun` on the trace's clock."""

    def __init__(self, trace: Trace, step: int, begun: float) -> None:
        self._trace = trace
        self._step = step
        self._begun = begun

    def read(self, start: float, end: float) -> None:
        """Record that the draft model read image and prompt."""
        self._trace.add(Kind.PREFILL.value, Lane.EDGE, start, end, step=self._step)

    @contextmanager
    def drafting(self, speculator: Speculator | None = None) -> Iterator[None]:
        """Record the enclosed draft forward: for the next round, or past the one that is being verified."""
        flight = speculator.flight if speculator is not None else None
        kind = Kind.DRAFT if flight is None else Kind.PREDRAFT
        number = speculator.rounds + (flight is None) if speculator is not None else 0
        with self._trace.span(kind.value, Lane.EDGE, step=self._step, round=number):
            yield

    def heard(self, early: EarlyTokens, used: bool, now: float) -> None:
        """Record an exit's word; `used` says whether it came in time to raise a branch."""
        self._trace.mark(
            Kind.EARLY.value, Lane.LINK, now, step=self._step, round=early.round, layer=early.layer, node=early.node,
            token=early.token, confidence=round(early.confidence, 4), used=used,
        )  # fmt: skip

    def committed(self, commit: Commit, tokens: int, sent: float, now: float) -> None:
        """Record a round from its sending to `now`, and within it what the verifier says it took.

        The verifier's clock is not ours. Its work is drawn with equal ways up and down, as long as these can have
        been: both its verification and, at the first commit, its prefill lie between question and answer.
        """
        names = {"step": self._step, "round": commit.round}
        self._trace.add(Kind.ROUND.value, Lane.LINK, sent, now, **names, tokens=tokens)
        work = commit.queue_s + commit.compute_s
        spare = now - sent - work
        if commit.prefill_s > 0.0:
            spare = min(spare, now - self._begun - commit.prefill_s - work)
        one_way = max(0.0, spare) / 2.0
        started = now - one_way - commit.compute_s
        arrived = self._begun + one_way
        kind = Kind.VERIFY if commit.round else Kind.DECODE
        for what, start, seconds in (
            (Kind.PREFILL, arrived, commit.prefill_s),
            (Kind.QUEUE, started - commit.queue_s, commit.queue_s),
            (kind, started, commit.compute_s),
        ):
            if seconds > 0.0:
                self._trace.add(what.value, Lane.CLOUD, start, start + seconds, **names)

    def landed(self, commit: Commit, tokens: int, landing: Landing, now: float) -> None:
        """Record where a commit came down in the draft."""
        self._trace.mark(
            Kind.COMMIT.value, Lane.EDGE, now, step=self._step, round=commit.round, tokens=tokens, landing=landing.value
        )

    def ended(self, stats: DecodingStats, now: float) -> None:
        """Record the whole step, with what the controller then knew."""
        known = {name: round(getattr(stats, name), 6) for name in ESTIMATES if getattr(stats, name) is not None}
        if known:
            known["gamma"] = stats.gamma
        self._trace.add(Kind.STEP.value, Lane.EDGE, self._begun, now, step=self._step, tokens=stats.tokens, **known)
