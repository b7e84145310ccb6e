"""Logs how each step ended and what it cost, adds up what all have cost, and enters their spans into a trace."""

from __future__ import annotations

import logging

from cloud_verifier.events import Committed, Ended, Event, Prefilled, Worked
from cloud_verifier.logs import event as fields
from cloud_verifier.sessions import Session
from cloud_verifier.usage import Usage
from speculation.trace import Lane, Trace

_log = logging.getLogger("cloud_verifier")


class StepLog:
    """Writes one line for each step that ended."""

    def __init__(self) -> None:
        self.totals = Usage()
        """Sum of what all steps have cost."""
        self.steps = 0
        """Number of steps that ended."""

    def take(self, event: Event) -> None:
        """Take an event of a step."""
        if isinstance(event, Committed):
            self.totals.count(event.step.act, len(event.commit.tokens))
        elif isinstance(event, Ended) and event.session is not None:
            self._ended(event, event.session)

    def _ended(self, event: Ended, session: Session) -> None:
        step, usage = event.step, event.step.usage
        total_ms, trace = (event.now - step.begun_at) * 1e3, step.request.trace_id
        self.steps += 1
        self.totals.waited_s += usage.waited_s
        self.totals.prefill_s += usage.prefill_s
        _log.info(
            "%s step %d %s: %s total=%.1fms%s",
            session.name, step.number, event.why or event.how, usage, total_ms, trace and f" trace={trace}",
            extra=fields(
                "step", session, step=step.number, how=event.how, why=event.why, tokens=usage.tokens,
                passes=usage.passes, total_ms=round(total_ms, 1), trace=trace,
            ),
        )  # fmt: skip


class Spans:
    """Enters what happens into a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Worked) and event.about:
            self._trace.add(event.kind, Lane.CLOUD, event.start, event.now, **event.about)
        elif isinstance(event, Prefilled) and event.tokens:
            about = {"step": event.step.number, "tokens": event.tokens}
            self._trace.add("prefill", Lane.CLOUD, event.start, event.now, **about)
        elif isinstance(event, Ended) and event.session is not None:
            step = event.step
            about = {"session": event.session.number, "step": step.number, "tokens": step.usage.tokens}
            self._trace.add("step", Lane.CLOUD, step.begun_at, event.now, **about)
