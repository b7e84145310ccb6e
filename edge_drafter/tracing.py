"""The spans of a step in its trace: each carries the step's number, and the round that it belongs to."""

from __future__ import annotations

from contextlib import AbstractContextManager

from edge_drafter.stats import ESTIMATES, DecodingStats
from edge_drafter.step_drafter import Outcome
from speculation.trace import Kind, Lane, Trace
from speculation.wire import Commit, EarlyTokens


class StepTrace:
    """The spans of one step, which began at `begun` on the trace's clock."""

    def __init__(self, trace: Trace, step: int, begun: float, id: bytes = b"") -> None:
        """`id` is that of the trace which joins what both sides note of the step, see `BeginStep.trace`."""
        self._trace = trace
        self._id = id.hex()
        self._step = step
        self._begun = begun

    def prefill(self, start: float, end: float) -> None:
        """Record that the draft model read image and prompt."""
        self._trace.add(Kind.PREFILL.value, Lane.EDGE, start, end, step=self._step)

    def drafting(self, round: int = 0, verifying: bool = False) -> AbstractContextManager[None]:
        """Record the enclosed draft forward of a round: for its draft, or past it while it is being verified."""
        kind = Kind.PREDRAFT if verifying else Kind.DRAFT
        return self._trace.span(kind.value, Lane.EDGE, step=self._step, round=round)

    def early_token(self, early: EarlyTokens, used: bool, now: float) -> None:
        """Record an early token; `used`: it came in time to raise a branch."""
        self._trace.mark(
            Kind.EARLY.value, Lane.LINK, now, step=self._step, round=early.round, layer=early.layer, node=early.node,
            token=early.token, confidence=round(early.confidence, 4), used=used,
        )  # fmt: skip

    def round(self, commit: Commit, tokens: int, sent: float, now: float) -> None:
        """Record a round from its sending to `now`, and within it the verifier's work, by its own durations.

        The verifier's clock is not ours. Its work is placed with equal ways up and down, as long as these can have
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

    def commit(self, commit: Commit, tokens: int, outcome: Outcome, now: float) -> None:
        """Record what a commit found of the next draft."""
        self._trace.mark(
            Kind.COMMIT.value, Lane.EDGE, now, step=self._step, round=commit.round, tokens=tokens, landing=outcome.value
        )

    def step(self, stats: DecodingStats, now: float) -> None:
        """Record the whole step, with what the controller then knew."""
        known = {name: round(getattr(stats, name), 6) for name in ESTIMATES if getattr(stats, name) is not None}
        if known:
            known["gamma"] = stats.gamma
        useful = stats.draft_forwards - stats.wasted_forwards
        counts = {"tokens": stats.tokens, "useful_forwards": useful}
        named = {"trace": self._id} if self._id else {}
        self._trace.add(Kind.STEP.value, Lane.EDGE, self._begun, now, step=self._step, **named, **counts, **known)
