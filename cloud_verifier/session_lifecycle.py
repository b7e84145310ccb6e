"""Opens, resumes and closes sessions: which robot is served, and on whose place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cloud_verifier.config import ServerConfig
from cloud_verifier.interfaces import Post
from cloud_verifier.kv_admission import KvAdmission
from cloud_verifier.logs import event
from cloud_verifier.machine import Machine
from cloud_verifier.outbox import Outbox
from cloud_verifier.sessions import SILENT_S, Session, SessionTable, refusal, welcome
from cloud_verifier.slo import Membership
from speculation import wire
from speculation.sampling import SamplingScheme

_log = logging.getLogger("cloud_verifier")

DRAINING = "it is being drained"


class SessionLifecycle:
    """Answers Hello with a session or a reason, and ends sessions. `clock` gives seconds.

    A verifier of a cluster (`membership`) takes new robots with a ticket only.
    """

    def __init__(
        self,
        machine: Machine,
        config: ServerConfig,
        mailbox: Post,
        sessions: SessionTable,
        memory: KvAdmission,
        outbox: Outbox,
        membership: Membership | None,
        clock: Callable[[], float],
    ) -> None:
        self._machine, self._model = machine, machine.serves(config.limits)
        self._max_draft, self._idle_s = config.limits.max_draft, config.limits.idle_s
        self._sessions_per_client = config.quotas.sessions_per_client
        self._mailbox, self._sessions, self._memory, self._outbox = mailbox, sessions, memory, outbox
        self._membership, self._clock = membership, clock
        self.is_draining = False
        """Whether a drain has begun: every robot that says Hello is then sent elsewhere."""

    def hello(self, peer: bytes, hello: wire.Hello) -> None:
        """Give the robot at `peer` a session, its own where it has one, or tell it why there is none."""
        now = self._clock()
        fault = refusal(hello, self._model)
        if fault is not None:
            self._outbox.refuse(peer, fault)
            return
        if self.is_draining:
            self._mailbox.send(peer, wire.Redirect(reason=DRAINING), droppable=True)
            return
        client = self._mailbox.client(peer)
        session = self._resumed(hello, client)
        known = self._sessions.of_peer(peer)
        if self._membership is not None and session is None and known is None:
            try:
                self._membership.check_ticket(hello.ticket, client)
            except ValueError as error:
                self._outbox.refuse(peer, wire.Fault(wire.FaultCode.NO_TICKET, f"Hello.ticket: {error}"))
                return
        # Who starts over does so on its own row, where what it has used still counts.
        again = known is not None and session is None
        if known is not None and known is not session:
            self.close(known, "sent Hello again", same_robot=again)
        if session is not None:
            self._outbox.attach(session, peer)
        else:
            text = self._no_place(client)
            if text:
                self._turn_away(peer, text)
                return
            session = self._sessions.open(peer, now, known.index if known is not None else None, client)
            about = event("session_opened", session, service_class=hello.service_class)
            places = len(self._sessions)
            _log.info("%s opened: class=%s of %d", session.name, hello.service_class, places, extra=about)
        self._mailbox.admit(peer)
        session.sampling = SamplingScheme.parse(hello.sampling)
        session.service_class = hello.service_class
        session.features = bool(hello.features)
        drafts = self._machine.draft_engine is not None
        self._outbox.send(
            session, welcome(session.token, self._model, self._max_draft, self._machine.profile.name, drafts)
        )

    def expire(self) -> None:
        """Close the sessions whose robots lost their key or were silent for too long."""
        for client in self._mailbox.revoked():
            for session in self._sessions.of_client(client):
                self.close(session, "its robot's key was taken back")
        now = self._clock()
        for session in self._sessions.all:
            if now - session.last_seen > self._idle_s:
                self.close(session, f"silent for {self._idle_s:g} s")

    def send_away(self, session: Session, why: str) -> None:
        """Close a session and tell its robot to ask for another verifier."""
        peer = session.peer
        self.close(session, "sent elsewhere")
        if peer is not None:
            self._mailbox.send(peer, wire.Redirect(reason=why))

    def close(self, session: Session, why: str, same_robot: bool = False) -> None:
        """End a session. same_robot: the next one on its row is its own, and what it has used still counts."""
        self._outbox.close(session, why)
        if not same_robot:
            self._memory.forget(session.index)

    def _resumed(self, hello: wire.Hello, client: str) -> Session | None:
        """Return the session that a robot resumes; None for a new robot, or a token that came with another's key."""
        session = self._sessions.of_token(hello.resume)
        if session is not None and session.client != client:
            _log.warning(
                "the resume token of %s came with the key of %s: it gets a session of its own", session.name, client
            )
            return None
        return session

    def _turn_away(self, peer: bytes, text: str) -> None:
        """Tell a robot for which there is no place when to come again."""
        # A place becomes free at the earliest when a robot was silent for so long.
        wait = self._memory.later(SILENT_S)
        self._outbox.busy += 1
        if self._outbox.allowance.take(b"", self._clock()):
            _log.warning("a robot has no place: %s; again in %.1f s", text, wait)
        self._mailbox.send(peer, wire.Busy(wait, text), droppable=True)

    def _no_place(self, client: str) -> str:
        """Return why there is no session for a robot of this client; empty where there is one, or one was freed."""
        own = self._sessions.of_client(client) if client else []
        if len(own) >= self._sessions_per_client and not self._drop_dead(own):
            return f"all {self._sessions_per_client} sessions of {client} are taken (--sessions-per-client)"
        if self._sessions.full and not self._drop_dead(self._sessions.all):
            return f"all {self._sessions.limit} sessions are taken (--max-sessions)"
        return ""

    def _drop_dead(self, sessions: Sequence[Session]) -> bool:
        """Free a row: close the first session whose edge is gone or was silent for long. Returns whether one was."""
        for session in sessions:
            if session.peer is not None:
                self._outbox.send(session, wire.Ping(0), droppable=True)
            silent = self._clock() - session.last_received > SILENT_S
            if session.peer is None or (silent and not self._mailbox.waits(session.peer)):
                self.close(session, "its edge is gone and the place is needed")
                return True
        return False
