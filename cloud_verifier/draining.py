"""Sends robots to other verifiers: all of them where this one is to stop, some where others have more room."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloud_verifier.outbox import Outbox
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.session_lifecycle import DRAINING, SessionLifecycle
from cloud_verifier.sessions import Session, SessionTable
from speculation import wire

_log = logging.getLogger("cloud_verifier")

SHED = "others have more room"


class Draining:
    """Lets each robot go between two answers and, `seconds` after `begin`, in the midst of one. `clock` gives seconds.

    `begin` and `shed` may be called in any thread and from a signal handler.
    """

    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        outbox: Outbox,
        lifecycle: SessionLifecycle,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._sessions, self._scheduler, self._outbox, self._lifecycle = sessions, scheduler, outbox, lifecycle
        self.seconds, self._clock = seconds, clock
        self._to_shed = 0
        """Robots that are to go elsewhere although this verifier goes on."""
        self._ends_at: float | None = None
        """When those that are still here are sent elsewhere in the midst of their answers."""

    @property
    def begun(self) -> bool:
        """Whether a drain has begun, in which all robots are sent elsewhere."""
        return self._lifecycle.is_draining

    def begin(self) -> None:
        """Let no robot in any more, and those that are here go."""
        self._lifecycle.is_draining = True

    def shed(self, robots: int) -> None:
        """Let so many robots go."""
        self._to_shed = robots

    def turn(self) -> bool:
        """Send away who is to go and may go now. Returns whether all were to go and none is left."""
        if self.begun:
            self._send_all_away()
            return not len(self._sessions)
        for session in self._sessions.all if self._to_shed else ():
            if self._to_shed and session.peer is not None and self._is_between_answers(session):
                self._to_shed -= 1
                self._lifecycle.send_away(session, SHED)
        return False

    def _send_all_away(self) -> None:
        """Send robots elsewhere that are between two answers, or all when it is time."""
        now = self._clock()
        if self._ends_at is None:
            self._ends_at = now + self.seconds
            _log.info("draining: %d robots go elsewhere, within %g s", len(self._sessions), self.seconds)
            for session in self._sessions.all:
                if not self._is_between_answers(session):  # nobody waits for a robot that is gone
                    self._outbox.send(session, wire.Ping(0), droppable=True)
        for session in self._sessions.all:
            if session.peer is None or self._is_between_answers(session) or now >= self._ends_at:
                self._lifecycle.send_away(session, DRAINING)

    def _is_between_answers(self, session: Session) -> bool:
        step = self._scheduler.step(session.index)
        return step is None or step.done
