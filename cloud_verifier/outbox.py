"""Sends messages to robots by their sessions, and logs what is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.interfaces import Post
from cloud_verifier.limits import Allowance
from cloud_verifier.logs import event
from cloud_verifier.monitoring import series
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import Session, SessionTable
from cloud_verifier.slo import SloAttainment
from cloud_verifier.step import Step
from cloud_verifier.usage import Usage
from speculation import wire
from speculation.text import printable
from speculation.trace import Lane, Trace

_log = logging.getLogger("cloud_verifier")

REFUSALS_PER_S, REFUSALS_AT_ONCE = 5.0, 30
"""Refused messages and Hellos that a peer may send; beyond, what it sends is dropped unread."""


class Outbox:
    """The robots' ends of their sessions. `clock` gives seconds."""

    def __init__(
        self,
        mailbox: Post,
        sessions: SessionTable,
        scheduler: Scheduler,
        exits: ExitQueue,
        clock: Callable[[], float],
        trace: Trace | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._mailbox, self._sessions, self._scheduler, self._exits = mailbox, sessions, scheduler, exits
        self._clock, self._trace = clock, trace
        self.figures = figures or Figures(clock)
        self.allowance = Allowance(REFUSALS_PER_S, REFUSALS_AT_ONCE)
        """Of refusals, by peer."""
        self.promises = SloAttainment()
        """Whether commits came as fast as their classes promise."""
        self.totals = Usage()
        """What all steps have cost."""
        self.steps = self.faults = 0
        """Steps that ended, and faults that were sent."""

    def send(self, session: Session, message: wire.AnyMessage, droppable: bool = False) -> None:
        """Send to a session's edge, if it is there; one that takes nothing any more is gone."""
        if session.peer is None:
            return
        if self._mailbox.send(session.peer, message, droppable):
            session.last_seen = self._clock()
        else:
            _log.info("%s lost its edge", session.name, extra=event("session_lost", session))
            self.count_lost(session)
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
            self._sessions.detach(session)
            if (step := self._scheduler.step(session.index)) is not None:
                step.suspend()
            self._exits.overtake(session.index)

    def count_lost(self, session: Session) -> None:
        """Count that a session's robot was gone."""
        self.figures.count(series.LOST)
        self.figures.count(series.ROBOT_LOST, 1, self.figures.robot(session.client))

    def send_features(self, session: Session, step: Step, position: int) -> None:
        """Send what a robot that asks for it continues its drafts from, with an answer of so many tokens."""
        features = step.known_features(position)
        if features is not None:
            self.send(session, features)

    def send_early(self) -> None:
        """Send the early tokens that are due."""
        while (due := self._exits.pop(self._clock())) is not None:
            session = self._sessions.of_index(due[0])
            if session is not None:
                self.send(session, due[1], droppable=True)

    def refuse(self, peer: bytes, fault: wire.Fault) -> None:
        """Send a fault, which uses up some of what the peer is allowed."""
        self.faults += 1
        self.figures.count(series.FAULTS, 1, fault.code.name)
        self.allowance.take(peer, self._clock())
        session = self._sessions.of_peer(peer)
        fault = wire.Fault(fault.code, printable(fault.message, wire.MAX_TEXT_CHARS - 50), fault.step)
        who = session.name if session else "a peer without session"
        # Peers without a session share one allowance of log lines: each may come back as another peer.
        if session is not None or self.allowance.take(b"", self._clock()):
            about = event("refused", session, code=fault.code.name, step=fault.step)
            _log.warning("refused %s: %s: %s", who, fault.code.name, fault.message, extra=about)
        if session is None:
            self._mailbox.send(peer, fault, droppable=True)
        else:
            self.send(session, fault)

    def give_up(self, step: Step, code: wire.FaultCode, text: str) -> None:
        """End a step, unless another took its place, with a fault to its edge."""
        if not self._scheduler.is_current(step):
            return
        self._scheduler.end(step.index)
        self.figures.ended(step, "failed" if code is wire.FaultCode.INTERNAL else "refused", self._clock())
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None and session.peer is not None:
            self.refuse(session.peer, wire.Fault(code, text, step.number))

    def log_step(self, session: Session, step: Step | None, how: str, why: str = "") -> None:
        """Log once how a step ended (one of `monitoring.series.REASONS`; `why`: in other words) and what it cost."""
        if step is None or step.logged:
            return
        step.logged = True
        self.steps += 1
        now, usage = self._clock(), step.usage
        total_ms = (now - step.begun_at) * 1e3
        trace = self.figures.trace_id(step)
        _log.info(
            "%s step %d %s: %s total=%.1fms%s",
            session.name, step.number, why or how, usage, total_ms, trace and f" trace={trace}",
            extra=event(
                "step", session, step=step.number, how=how, why=why, tokens=usage.tokens, passes=usage.passes,
                total_ms=round(total_ms, 1), trace=trace,
            ),
        )  # fmt: skip
        self.figures.ended(step, how, now)
        self.totals.waited_s += usage.waited_s
        self.totals.prefill_s += usage.prefill_s
        self.record("step", step.begun_at, now, session=session.number, step=step.number, tokens=usage.tokens)

    def record(self, name: str, start: float, end: float, **args: int) -> None:
        """Enter a span, in seconds of the clock, in the trace, where there is one."""
        if self._trace is not None:
            self._trace.add(name, Lane.CLOUD, start, end, **args)
