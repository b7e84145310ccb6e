"""Takes what robots send. A malformed message costs its sender a `Fault`; who sends many is not read any more."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cloud_verifier import config
from cloud_verifier.events import Begun, Events
from cloud_verifier.kv_admission import LEAST_WAIT_S, MOST_WAIT_S, NoRoom
from cloud_verifier.limits import Rate
from cloud_verifier.outbox import Outbox
from cloud_verifier.scheduler import Refused, Scheduler
from cloud_verifier.session_lifecycle import SessionLifecycle
from cloud_verifier.sessions import Session, SessionTable, message_of
from cloud_verifier.step_admission import StepAdmission
from speculation import wire

_log = logging.getLogger("cloud_verifier")

BURST_S = 4.0
"""A client may use so many seconds' worth at once."""


class Quotas:
    """Holds clients to what they may use a second: who uses more is asked to come back when it is paid off.

    It counts by user: a client or, without keys, a session. Times are seconds on any clock.
    """

    def __init__(self, settings: config.Quotas) -> None:
        rates = {"steps": settings.steps_per_s, "bytes": settings.bytes_per_s}
        rates["draft tokens"] = settings.draft_tokens_per_s
        self._rates = {what: Rate(rate, BURST_S) for what, rate in rates.items() if rate}

    def use(self, what: str, user: object, amount: float, now: float) -> None:
        """Enter a use of `steps`, `bytes` or `draft tokens`, whether or not the quota allows it."""
        if what in self._rates:
            self._rates[what].use(user, amount, now)

    def check(self, user: object, now: float, *kinds: str) -> None:
        """Raise NoRoom, with the quota's flag and a time to come back, where one of these kinds is used up."""
        for what in kinds:
            rate = self._rates.get(what)
            if rate is not None and (wait := rate.wait(user, now)) > 0.0:
                flag = f"--{what.replace(' ', '-')}-per-s"
                text = f"this robot's quota of {rate.rate:g} {what} a second is used up ({flag})"
                raise NoRoom(text, min(MOST_WAIT_S, max(LEAST_WAIT_S, wait)))


class Inbox:
    """Hands each message to whom it is for: Hello to `lifecycle`, the others to the scheduler. `clock` gives seconds.

    `ignored` counts the messages that were dropped unread.
    """

    def __init__(
        self,
        sessions: SessionTable,
        scheduler: Scheduler,
        quotas: Quotas,
        admission: StepAdmission,
        lifecycle: SessionLifecycle,
        outbox: Outbox,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self._sessions, self._scheduler, self._quotas = sessions, scheduler, quotas
        self._admission, self._lifecycle, self._outbox = admission, lifecycle, outbox
        self._emit, self._clock = events.emit, clock
        self.ignored = 0

    def receive(self, peer: bytes, frames: list[bytes]) -> None:
        """Take a message of any content from any peer. Nothing is raised."""
        session = self._sessions.of_peer(peer)
        try:
            self._take(peer, session, frames)
        finally:
            if session is not None:
                self._quotas.use("bytes", session.user, sum(map(len, frames)), self._clock())

    def _take(self, peer: bytes, session: Session | None, frames: list[bytes]) -> None:
        if self._outbox.allowance.wait(peer, self._clock()) > 0.0:
            self.ignored += 1
            return
        try:
            message = message_of(frames)
        except wire.WireError as error:
            large = len(frames[0]) > wire.MAX_MESSAGE_BYTES
            code = wire.FaultCode.TOO_LARGE if large else wire.FaultCode.MALFORMED
            self._outbox.refuse(peer, wire.Fault(code, str(error)))
            return
        try:
            if isinstance(message, wire.Hello):
                self._outbox.allowance.take(peer, self._clock())
                self._lifecycle.hello(peer, message)
            elif session is None:
                text = "no session: this connection has none (the verifier may have been restarted); send Hello again"
                raise Refused(wire.FaultCode.NO_SESSION, text, getattr(message, "step", None))
            else:
                session.last_seen = session.last_received = self._clock()
                self._dispatch(session, message)
        except Refused as error:
            self._outbox.refuse(peer, error.fault)
        except Exception as error:
            # A message that fails in a way that is not foreseen ends its sender's step and not the server.
            _log.exception("a %s could not be taken", type(message).__name__)
            text = f"the verifier failed over this {type(message).__name__}: {type(error).__name__}"
            self._outbox.refuse(peer, wire.Fault(wire.FaultCode.INTERNAL, text, getattr(message, "step", None)))
            if session is not None:
                self._outbox.end(self._scheduler.end(session.index), "failed")

    def _dispatch(self, session: Session, message: wire.AnyMessage) -> None:
        if isinstance(message, wire.Draft):
            self._draft(session, message)
        elif isinstance(message, wire.BeginStep):
            self._begin(session, message)
        elif isinstance(message, wire.EndStep):
            step = self._scheduler.end(session.index, message.step)
            self._outbox.end(step, "cancelled", f"ended by the edge: {message.reason[:100]}")
        elif isinstance(message, wire.Fetch):
            for commit in self._scheduler.fetch(session.index, message):
                self._outbox.send(session, commit)
        elif isinstance(message, wire.Ping):
            self._outbox.send(session, wire.Pong(message.nonce))
        elif isinstance(message, wire.Fault):
            self._outbox.allowance.take(session.peer, self._clock())
            if message.code is wire.FaultCode.NO_SESSION:
                self._lifecycle.close(session, f"ended by the edge: {message.message[:100]}")
                return
            _log.warning("%s reports %s: %s", session.name, message.code.name, message.message[:300])
        elif not isinstance(message, wire.Pong):
            text = f"malformed message: {type(message).__name__} goes from verifier to edge only"
            raise Refused(wire.FaultCode.MALFORMED, text)

    def _draft(self, session: Session, draft: wire.Draft) -> None:
        """Offer a draft to the session's step, within the quota of its robot."""
        now = self._clock()
        step = self._scheduler.step(session.index)
        if step is not None and step.number == draft.step and not step.done:
            try:
                self._quotas.check(session.user, now, "draft tokens")
            except NoRoom as full:
                self._outbox.end(step, "refused", "stopped by a quota")
                self._outbox.send_busy(step, full)
                return
            self._quotas.use("draft tokens", session.user, len(draft.tokens), now)
        for commit in self._scheduler.offer(session.index, draft, now):
            self._outbox.send(session, commit)
        step = self._scheduler.step(session.index)
        if step is not None and step.done:  # a token of the edge may end the answer
            self._outbox.end(step, "done")

    def _begin(self, session: Session, begin: wire.BeginStep) -> None:
        """Begin a step in place of the session's last one, or send again what a step that goes on has committed."""
        now = self._clock()
        before = self._scheduler.step(session.index)
        commits = self._scheduler.begin(
            session.index, begin, now, session.sampling, session.service_class, session.features
        )
        step = self._scheduler.step(session.index)
        if step is not None and step is not before:
            self._outbox.end(before, "superseded")
            self._emit(Begun(step, session, now))
            if step.pending:
                try:
                    self._quotas.check(session.user, now, "steps", "bytes", "draft tokens")
                    self._admission.submit(step, begin)
                    self._quotas.use("steps", session.user, 1.0, now)
                except NoRoom as full:
                    self._outbox.send_busy(step, full)
                    return
        elif step is not None:
            self._outbox.send_features(step, len(begin.committed))
        for commit in commits:
            self._outbox.send(session, commit)
