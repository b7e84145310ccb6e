"""Sends messages to robots by their sessions, and notes which robot is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloud_verifier.events import Deferred, Ended, Events
from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.interfaces import Post
from cloud_verifier.kv_admission import NoRoom
from cloud_verifier.limits import Rate
from cloud_verifier.logs import event
from cloud_verifier.monitoring import series
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import SILENT_S, Session, SessionTable
from cloud_verifier.step import Step
from speculation import wire
from speculation.text import printable

_log = logging.getLogger("cloud_verifier")

REFUSALS_PER_S, REFUSALS_AT_ONCE = 5.0, 30
"""Refused messages and Hellos that a peer may send; beyond, what it sends is dropped unread."""


class Outbox:
    """Sends to the robots of sessions, and takes note of those that are gone. `clock` gives seconds."""

    def __init__(
        self,
        mailbox: Post,
        sessions: SessionTable,
        scheduler: Scheduler,
        exits: ExitQueue,
        figures: Figures,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self._mailbox, self._sessions, self._scheduler, self._exits = mailbox, sessions, scheduler, exits
        self._figures, self._events, self._clock = figures, events, clock
        self.allowance = Rate.counted(REFUSALS_PER_S, REFUSALS_AT_ONCE)
        """What each peer may still have refused."""
        self.faults = self.busy = self.evicted = 0
        """Numbers of faults that were sent, robots that were asked to come back later, and steps that lost their
        memory."""

    def send(self, session: Session, message: wire.AnyMessage, droppable: bool = False) -> None:
        """Send to a session's edge, if it is there; one that takes nothing any more is gone."""
        if session.peer is None:
            return
        if self._mailbox.send(session.peer, message, droppable):
            session.last_seen = self._clock()
        else:
            _log.info("%s lost its edge", session.name, extra=event("session_lost", session))
            self._count_lost(session)
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
            self._sessions.detach(session)
            if (step := self._scheduler.step(session.index)) is not None:
                step.suspend()
            self._exits.overtake(session.index)

    def attach(self, session: Session, peer: bytes) -> None:
        """Continue a session at `peer`, the new connection of its robot."""
        if session.peer is not None and session.peer != peer:  # gone and back before anything was sent to it
            self._count_lost(session)
            self._mailbox.admit(session.peer, False)
        self._sessions.attach(session, peer, self._clock())
        _log.info("%s resumed", session.name, extra=event("session_resumed", session))
        self._figures.count(series.RESUMED)

    def close(self, session: Session, why: str) -> None:
        """End a session and the step that it has under way; its row is free."""
        self.end(self._scheduler.end(session.index), "lost", why)
        self._figures.closed(session.number)
        self._exits.overtake(session.index)
        self._scheduler.forget(session.index)
        if session.peer is not None:
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
        self._sessions.close(session)
        _log.info("%s closed: %s", session.name, why, extra=event("session_closed", session, why=why))

    def _count_lost(self, session: Session) -> None:
        self._figures.count(series.LOST)
        self._figures.count(series.ROBOT_LOST, 1, self._figures.robot(session.client))

    def send_to(self, step: Step, message: wire.AnyMessage) -> None:
        """Send to the edge of a step."""
        session = self._sessions.of_index(step.index)
        if session is not None:
            self.send(session, message)

    def send_features(self, step: Step, position: int) -> None:
        """Send what a robot that asks for it continues its drafts from, with an answer of so many tokens."""
        features = step.features.message(step.number, step.answer.tokens[:position])
        if features is not None:
            self.send_to(step, features)

    def queue_early(self, step: Step, early: wire.EarlyTokens) -> None:
        """Let an exit's verdict leave when it is its turn."""
        self._exits.push(step.index, early)

    def send_commit(self, step: Step, commit: wire.Commit) -> None:
        """Send a commit, which overtakes what exits said of its pass and may end the step."""
        self._exits.overtake(step.index)
        self.send_to(step, commit)
        if commit.done:
            self.end(step, "done")

    def send_early(self) -> None:
        """Send the early tokens that are due."""
        while (due := self._exits.pop(self._clock())) is not None:
            session = self._sessions.of_index(due[0])
            if session is not None:
                self.send(session, due[1], droppable=True)

    def refuse(self, peer: bytes, fault: wire.Fault) -> None:
        """Send a fault, which uses up some of what the peer is allowed."""
        self.faults += 1
        self._figures.count(series.FAULTS, 1, fault.code.name)
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

    def send_busy(self, step: Step, full: NoRoom) -> None:
        """End a step that cannot be taken now, with a time for its edge to begin it again."""
        self._scheduler.end(step.index)
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None and session.peer is not None:
            self.allowance.take(session.peer, self._clock())
            self.busy += 1
            self._events.emit(Deferred(step))
            _log.info(
                "%s step %d: %s; again in %.1f s", session.name, step.number, full, full.retry_after_s,
                extra=event("busy", session, step=step.number, retry_after_s=round(full.retry_after_s, 1)),
            )  # fmt: skip
            self.send(session, wire.Busy(full.retry_after_s, str(full), step.number))

    def send_evicted(self, index: int) -> None:
        """End the step of a row whose memory others got. Its edge begins it again where it stands, when it goes on."""
        step = self._scheduler.evict(index)
        self.evicted += 1
        self._figures.count(series.PREEMPTIONS)
        self.end(step, "evicted")
        if step is not None:
            text = "the step waited for long and its memory is with others; send Hello and BeginStep again"
            self._refuse(step, wire.FaultCode.NO_SESSION, text)

    def silent_rows(self) -> set[int]:
        """Return the rows of robots that were silent for long, although all that they sent was read."""
        now = self._clock()
        return {
            each.index
            for each in self._sessions.all
            if now - each.last_received > SILENT_S and not (each.peer and self._mailbox.waits(each.peer))
        }

    def give_up(self, step: Step, code: wire.FaultCode, text: str) -> None:
        """End a step, unless another took its place, with a fault to its edge."""
        if not self._scheduler.is_current(step):
            return
        self._scheduler.end(step.index)
        how = "failed" if code is wire.FaultCode.INTERNAL else "refused"
        self._events.emit(Ended(step, how, self._clock()))
        self._exits.overtake(step.index)
        self._refuse(step, code, text)

    def _refuse(self, step: Step, code: wire.FaultCode, text: str) -> None:
        session = self._sessions.of_index(step.index)
        if session is not None and session.peer is not None:
            self.refuse(session.peer, wire.Fault(code, text, step.number))

    def end(self, step: Step | None, how: str, why: str = "") -> None:
        """Drop the early tokens of a step that is over and note, once, how it ended.

        `how` is one of `monitoring.series.REASONS`; `why` says it in other words.
        """
        if step is None:
            return
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None and not step.logged:
            step.logged = True
            self._events.emit(Ended(step, how, self._clock(), session, why))
