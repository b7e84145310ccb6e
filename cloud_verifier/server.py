"""The server: messages in, messages out. One thread; while the engine works, messages are read between its layers.

No message ends it and no peer blocks it: a malformed message costs its sender a `Fault`, many of them are not read any
more, a slow reader loses its early tokens first and its session last. Frames are decoded beside it (`ImageDecoding`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from cloud_verifier.config import ServerConfig
from cloud_verifier.declared_times import paced_machine
from cloud_verifier.events import Begun, Events
from cloud_verifier.executor import Executor
from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.image_decoding import ImageDecoding
from cloud_verifier.interfaces import Post
from cloud_verifier.logs import event
from cloud_verifier.machine import Machine
from cloud_verifier.memory import Admission, NoRoom
from cloud_verifier.monitoring import series
from cloud_verifier.monitoring.figures import Figures, Phase
from cloud_verifier.monitoring.sessions import figures_of
from cloud_verifier.monitoring.spans import Spans
from cloud_verifier.outbox import Outbox
from cloud_verifier.quotas import Quotas
from cloud_verifier.scheduler import Refused, Scheduler
from cloud_verifier.sessions import SILENT_S, Session, SessionTable, refusal, welcome
from cloud_verifier.slo import Membership, SloAttainment, Standing
from cloud_verifier.step_admission import StepAdmission, preparer
from cloud_verifier.step_log import StepLog
from speculation import wire
from speculation.sampling import SamplingScheme
from speculation.trace import Trace

_log = logging.getLogger("cloud_verifier")

IDLE_WAIT_S = 0.1
"""How long the server sleeps at most, so that a signal is seen."""
MESSAGES_PER_TURN, READ_S = 64, 0.01
"""Messages that are read in a row, and seconds, before work goes on."""
REPORT_S = 0.25
"""How often the server reports how it stands, where that is wanted; one that hangs does not."""
WORKING_S = 0.5
"""How often a robot that gets no commit hears that the verifier works for it: far below its patience."""
HELD_UP_S = 0.3
"""For so long no message is read before a thread says in place of the server's own that it works."""
DRAINING, SHED, STOPPED = "it is being drained", "others have more room", "the verifier was stopped"


class Server:
    """Serves one engine to many edges; `run` until `stop`."""

    def __init__(
        self,
        machine: Machine,
        config: ServerConfig,
        mailbox: Post,
        clock: Callable[[], float] = time.monotonic,
        figures: Figures | None = None,
        trace: Trace | None = None,
        membership: Membership | None = None,
        preparation_threads: int = 0,
    ) -> None:
        """`figures` are what it counts into and publishes, on the same `clock`; None: ones of its own.

        `trace` takes spans of what it does. `membership`: of the cluster that it is one of.
        """
        self._machine, self._model = machine, machine.engine.model
        self._max_draft = config.limits.max_draft
        sight = self._model.sight
        if sight is not None and config.limits.frames:
            sight = msgspec.structs.replace(sight, frames=config.limits.frames)
            self._model = replace(self._model, sight=sight)
        self._mailbox, self._clock = mailbox, clock
        self._sessions = SessionTable(config.limits.max_sessions, config.limits.idle_s)
        self._scheduler = Scheduler(self._model, config.scheduling, config.limits, machine.costs())
        self._memory = Admission(machine.engine.blocks)
        self._quotas = Quotas(config.quotas)
        self._sessions_per_client = config.quotas.sessions_per_client
        early = config.early
        self._exits = ExitQueue(early.queue_policy, early.early_rate, early.early_burst, early.seed)
        self.figures = figures or Figures(clock)
        self.step_log, self._attainment = StepLog(), SloAttainment()
        spans = [Spans(trace).take] if trace is not None else []
        events = Events(self.figures.take, self.step_log.take, self._attainment.take, *spans)
        self._emit = events.emit
        self.outbox = Outbox(mailbox, self._sessions, self._scheduler, self._exits, self.figures, events, clock)
        paced = paced_machine(machine, self._attend_until, clock)
        self._executor = Executor(paced, self._scheduler, self._memory, self.outbox, events, self._attend, clock)
        self._decoding = ImageDecoding(preparer(machine, config.limits), mailbox.notify, preparation_threads, clock)
        self._admission = StepAdmission(
            machine, self._max_draft, self._decoding, self._scheduler, self._memory, self.outbox, self._executor, clock
        )
        self._membership = membership
        self._stopping = self._draining = False
        self._drain_s = config.limits.drain_s
        self._to_shed = 0
        """Robots that are to go elsewhere although this verifier goes on."""
        self._drained_at: float | None = None
        """When those that are still here are sent elsewhere in the midst of their answers."""
        self._begun_at = clock()
        self._reported_at = self._begun_at - REPORT_S
        self._ignored = 0
        self._tell_at = self._begun_at

    def run(self, hang_s: float | None = None) -> None:
        """Serve until `stop`, then end every step under way, or send it elsewhere in a cluster, and log a summary.

        While an image or a layer takes long, a thread tells robots that their verifier works, for `hang_s` seconds at
        most: what takes longer hangs. None: nobody does, as for a `Post` that may be used by one thread only.
        """
        if not self._draining:  # as soon as the models were there
            self.figures.phase = Phase.SERVING
        ended = threading.Event()
        if hang_s is not None:
            threading.Thread(target=self._stand_in, args=(hang_s, ended), name="working", daemon=True).start()
        try:
            while not self._stopping:
                self.turn()
        finally:
            ended.set()
        self._decoding.close()
        for session in self._sessions.all:
            step = self._scheduler.step(session.index)
            if self._membership is not None:  # others of its cluster go on with the step
                self._send_away(session, STOPPED)
            elif step is not None and not step.done:
                self.outbox.send(session, wire.EndStep(step.number, STOPPED))
        _log.info(
            "stopped after %.0f s: sessions=%d steps=%d %s early=%d early_dropped=%d faults=%d busy=%d evicted=%d "
            "ignored=%d",
            self._clock() - self._begun_at, self._sessions.opened, self.step_log.steps, self.step_log.totals,
            self._exits.sent, self._exits.dropped, self.outbox.faults, self.outbox.busy, self.outbox.evicted,
            self._ignored,
        )  # fmt: skip

    def stop(self) -> None:
        """Make `run` return after the forward under way. Safe to call from a signal handler."""
        self._stopping = True

    def drain(self) -> None:
        """Take no more robots, send those that are here elsewhere, and let `run` return when none is left.

        Each goes when its answer is done, after `drain_s` at once. Where `drain_s` is 0 this is `stop`, but for one of
        a cluster. Safe to call again, from a signal handler and in any thread.
        """
        self._draining = True
        self.figures.phase = Phase.DRAINING
        self._stopping = self._stopping or not (self._drain_s or self._membership is not None)

    def shed(self, robots: int) -> None:
        """Send so many robots elsewhere, each when its answer is done. Safe to call in any thread."""
        self._to_shed = robots

    def turn(self) -> None:
        """Read messages, then do the most urgent piece of work, or wait for some."""
        got_messages = self._attend()
        self._expire()
        self._admission.turn()  # no pass is under way, so a row may begin anew
        if self._draining:
            self._send_all_away()
        elif self._to_shed:
            self._send_some_away()
        batch = self._scheduler.next(self._clock())
        for step in batch.encodes:
            self._executor.encode(step)
        if batch.chunks or batch.choices:
            self._executor.run(batch)
        reads = self._executor.reads
        if not self._scheduler.image_waits:  # between two forwards is one image at most, the target's before another
            self._executor.read_on()
        if not (got_messages or batch or reads or self._stopping):
            now = self._clock()
            times = [t for t in (now + IDLE_WAIT_S, batch.again, self._exits.next_time(now)) if t is not None]
            self._mailbox.wait(min(times) - now)

    # --- time: messages and early tokens go on while the engine, or a declared delay, takes its time

    def _attend(self) -> bool:
        """Read messages and send early tokens that are due. Returns whether there were messages."""
        got_messages = self._read_messages()
        self.outbox.send_early()
        now = self.figures.beat = self._clock()
        if self.figures.due(now):
            self._publish(now)
        if now >= self._tell_at:
            self._tell(now)
        if self._membership is not None and now - self._reported_at >= REPORT_S:
            self._membership.report(self._standing(now))
            self._reported_at = now
        return got_messages

    def _attend_until(self, until: float) -> None:
        """Attend until a time, or until nobody wants the forward under way any more."""
        while True:
            self._attend()
            now = self._clock()
            if now >= until or self._stopping or self._executor.is_abandoned:
                return
            due = self._exits.next_time(now)
            self._mailbox.wait((until if due is None else min(until, due)) - now)

    def _tell(self, now: float, held_up: bool = False) -> None:
        """Tell robots that got no commit of late that their verifier works for them; in any thread.

        `held_up`: nobody reads messages. So a draft may have come for a step that seems to wait for one, and those
        without a step get a sign of life in place of answers to their pings.
        """
        self._tell_at = now + WORKING_S / 2
        for session in self._sessions.all:
            step, peer = self._scheduler.step(session.index), session.peer
            stage = None if step is None else step.stage
            if step is not None and stage is None and held_up and not step.done:
                stage = wire.Stage.QUEUED
            if peer is None:
                continue
            if step is not None and stage is not None:
                if now - max(session.told_at, step.begun_at, step.committed_at) >= WORKING_S:
                    session.told_at = now
                    self._mailbox.send(peer, wire.Working(step.number, stage), droppable=True)
            elif held_up:
                self._mailbox.send(peer, wire.Ping(0), droppable=True)

    def _stand_in(self, hang_s: float, ended: threading.Event) -> None:
        """Tell robots that their verifier works while the server's thread cannot."""
        while not ended.wait(HELD_UP_S):
            now = self._clock()
            if HELD_UP_S <= now - self.figures.beat <= hang_s:
                self._tell(now, held_up=True)

    def _read_messages(self) -> bool:
        until = self._clock() + READ_S
        for count in range(MESSAGES_PER_TURN):
            received = self._mailbox.receive() if self._clock() <= until else None
            if received is None:
                return count > 0
            self._receive(*received)
        return True

    def _standing(self, now: float) -> Standing:
        promises = self._attainment
        promises.asked(self._scheduler.asked, now - self._reported_at, now)
        memory = 1.0 - self._memory.free / self._memory.blocks
        # Those of robots that are gone make room for others, see `_drop_dead`.
        here = sum(each.peer is not None and now - each.last_received <= SILENT_S for each in self._sessions.all)
        return Standing(here, memory, promises.utilisation(now), promises.late(now), self._draining)

    def _send_all_away(self) -> None:
        """Send robots elsewhere that are between two answers, or all when it is time; stop when none is left."""
        now = self._clock()
        if self._drained_at is None:
            self._drained_at = now + self._drain_s
            _log.info("draining: %d robots go elsewhere, within %g s", len(self._sessions), self._drain_s)
            for session in self._sessions.all:
                if not self._is_between_answers(session):  # nobody waits for a robot that is gone
                    self.outbox.send(session, wire.Ping(0), droppable=True)
        for session in self._sessions.all:
            if session.peer is None or self._is_between_answers(session) or now >= self._drained_at:
                self._send_away(session, DRAINING)
        if not len(self._sessions):
            self._stopping = True

    def _send_some_away(self) -> None:
        for session in self._sessions.all:
            if self._to_shed and session.peer is not None and self._is_between_answers(session):
                self._to_shed -= 1
                self._send_away(session, SHED)

    def _send_away(self, session: Session, why: str) -> None:
        peer = session.peer
        self._close(session, "sent elsewhere")
        if peer is not None:
            self._mailbox.send(peer, wire.Redirect(reason=why))

    def _is_between_answers(self, session: Session) -> bool:
        step = self._scheduler.step(session.index)
        return step is None or step.done

    def _expire(self) -> None:
        for client in self._mailbox.revoked():
            for session in self._sessions.of_client(client):
                self._close(session, "its robot's key was taken back")
        for session in self._sessions.expired(self._clock()):
            self._close(session, f"silent for {self._sessions.idle_s:g} s")

    # --- messages

    def _receive(self, peer: bytes, frames: list[bytes]) -> None:
        session = self._sessions.of_peer(peer)
        try:
            self._take(peer, session, frames)
        finally:
            if session is not None:
                self._quotas.use("bytes", session.user, sum(map(len, frames)), self._clock())

    def _take(self, peer: bytes, session: Session | None, frames: list[bytes]) -> None:
        if self.outbox.allowance.left(peer, self._clock()) < 1.0:
            self._ignored += 1
            return
        try:
            if len(frames) != 1:
                raise wire.WireError("malformed message: more than one frame, expected 1")
            message = wire.decode(frames[0])
        except wire.WireError as error:
            large = len(frames[0]) > wire.MAX_MESSAGE_BYTES
            code = wire.FaultCode.TOO_LARGE if large else wire.FaultCode.MALFORMED
            self.outbox.refuse(peer, wire.Fault(code, str(error)))
            return
        try:
            if isinstance(message, wire.Hello):
                self.outbox.allowance.take(peer, self._clock())
                self._hello(peer, message)
            elif session is None:
                text = "no session: this connection has none (the verifier may have been restarted); send Hello again"
                raise Refused(wire.FaultCode.NO_SESSION, text, getattr(message, "step", None))
            else:
                session.last_seen = session.last_received = self._clock()
                self._dispatch(session, message)
        except Refused as error:
            self.outbox.refuse(peer, error.fault)
        except Exception as error:
            # A message that fails in a way that is not foreseen ends its sender's step and not the server.
            _log.exception("a %s could not be taken", type(message).__name__)
            text = f"the verifier failed over this {type(message).__name__}: {type(error).__name__}"
            self.outbox.refuse(peer, wire.Fault(wire.FaultCode.INTERNAL, text, getattr(message, "step", None)))
            if session is not None:
                self.outbox.end(self._scheduler.end(session.index), "failed")
                self._exits.overtake(session.index)

    def _dispatch(self, session: Session, message: wire.AnyMessage) -> None:
        now = self._clock()
        if isinstance(message, wire.Draft):
            step = self._scheduler.step(session.index)
            if step is not None and step.number == message.step and not step.done:
                try:
                    self._quotas.check(session.user, now, "draft tokens")
                except NoRoom as full:
                    self.outbox.end(step, "refused", "stopped by a quota")
                    self.outbox.send_busy(step, full)
                    return
                self._quotas.use("draft tokens", session.user, len(message.tokens), now)
            for commit in self._scheduler.offer(session.index, message, now):
                self.outbox.send(session, commit)
            step = self._scheduler.step(session.index)
            if step is not None and step.done:  # a token of the edge may end the answer
                self.outbox.end(step, "done")
        elif isinstance(message, wire.BeginStep):
            before = self._scheduler.step(session.index)
            commits = self._scheduler.begin(
                session.index, message, now, session.sampling, session.service_class, session.features
            )
            step = self._scheduler.step(session.index)
            if step is not None and step is not before:
                self._exits.overtake(session.index)
                self.outbox.end(before, "superseded")
                self._emit(Begun(step, session, now))
                if step.pending:
                    try:
                        self._quotas.check(session.user, now, "steps", "bytes", "draft tokens")
                        self._admission.submit(step, message)
                        self._quotas.use("steps", session.user, 1.0, now)
                    except NoRoom as full:
                        self.outbox.send_busy(step, full)
                        return
            elif step is not None:
                self.outbox.send_features(step, len(message.committed))
            for commit in commits:
                self.outbox.send(session, commit)
        elif isinstance(message, wire.EndStep):
            step = self._scheduler.end(session.index, message.step)
            if step is not None:
                self._exits.overtake(session.index)
                self.outbox.end(step, "cancelled", f"ended by the edge: {message.reason[:100]}")
        elif isinstance(message, wire.Fetch):
            for commit in self._scheduler.fetch(session.index, message):
                self.outbox.send(session, commit)
        elif isinstance(message, wire.Ping):
            self.outbox.send(session, wire.Pong(message.nonce))
        elif isinstance(message, wire.Fault):
            self.outbox.allowance.take(session.peer, now)
            _log.warning("%s reports %s: %s", session.name, message.code.name, message.message[:300])
        elif not isinstance(message, wire.Pong):
            text = f"malformed message: {type(message).__name__} goes from verifier to edge only"
            raise Refused(wire.FaultCode.MALFORMED, text)

    def _hello(self, peer: bytes, hello: wire.Hello) -> None:
        now = self._clock()
        fault = refusal(hello, self._model)
        if fault is not None:
            self.outbox.refuse(peer, fault)
            return
        if self._draining:
            self._mailbox.send(peer, wire.Redirect(reason=DRAINING), droppable=True)
            return
        client = self._mailbox.client(peer)
        session = self._sessions.of_token(hello.resume)
        if session is not None and session.client != client:
            _log.warning(
                "the resume token of %s came with the key of %s: it gets a session of its own", session.name, client
            )
            session = None
        known = self._sessions.of_peer(peer)
        if self._membership is not None and session is None and known is None:
            try:
                self._membership.check_ticket(hello.ticket, client)
            except ValueError as error:
                self.outbox.refuse(peer, wire.Fault(wire.FaultCode.NO_TICKET, f"Hello.ticket: {error}"))
                return
        # Who starts over does so on its own row, where what it has used still counts.
        again = known is not None and session is None
        if known is not None and known is not session:
            self._close(known, "sent Hello again", same_robot=again)
        if session is not None:
            if session.peer is not None and session.peer != peer:  # gone and back before anything was sent to it
                self.outbox.count_lost(session)
                self._mailbox.admit(session.peer, False)
            self._sessions.attach(session, peer, now)
            _log.info("%s resumed", session.name, extra=event("session_resumed", session))
            self.figures.count(series.RESUMED)
        else:
            text = self._no_place(client)
            if text:
                # A place becomes free at the earliest when a robot was silent for so long.
                wait = self._memory.later(SILENT_S)
                self.outbox.busy += 1
                if self.outbox.allowance.take(b"", now):
                    _log.warning("a robot has no place: %s; again in %.1f s", text, wait)
                self._mailbox.send(peer, wire.Busy(wait, text), droppable=True)
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
        self.outbox.send(session, welcome(session, self._model, self._max_draft, self._machine.profile.name, drafts))

    # --- peers and records

    def _publish(self, now: float) -> None:
        """Publish the figures, with what others keep."""
        figures, memory = self.figures, self._memory
        sessions = figures_of(self._sessions.all, self._scheduler, figures, now)
        for gauge, value in (
            (series.WAITING, sum(each.state == "queued" for each in sessions)),
            (series.RUNNING, sum(each.state in ("prefill", "running", "drafting") for each in sessions)),
            (series.KV_CACHE, 1.0 - memory.free / memory.blocks),
            (series.PLACES, self._sessions.limit),
            (series.PREDICTED, self._scheduler.decoding_s),
            (series.OPENED, self._sessions.opened),
            (series.TURNED_AWAY, self.outbox.busy),
            (series.IGNORED, self._ignored),
            (series.EARLY_SENT, self._exits.sent),
            (series.EARLY_DROPPED, self._exits.dropped),
            (series.MAIL_DROPPED, self._mailbox.dropped),
            (series.FRONTEND_RESTARTS, self._mailbox.restarts),
        ):
            figures.set(gauge, value)
        full = self._sessions.full and all(each.state != "away" and each.silent_s <= SILENT_S for each in sessions)
        problem = f"full: all {self._sessions.limit} sessions are taken (--max-sessions)" if full else ""
        figures.publish(now, sessions, problem)

    def _close(self, session: Session, why: str, same_robot: bool = False) -> None:
        """End a session. same_robot: the next one on its row is its own, and what it has used still counts."""
        self.outbox.end(self._scheduler.end(session.index), "lost", why)
        self.figures.closed(session.number)
        self._exits.close(session.index)
        self._scheduler.forget(session.index)
        if not same_robot:
            self._memory.forget(session.index)
        if session.peer is not None:
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
        self._sessions.close(session)
        _log.info("%s closed: %s", session.name, why, extra=event("session_closed", session, why=why))

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
                self.outbox.send(session, wire.Ping(0), droppable=True)
            silent = self._clock() - session.last_received > SILENT_S
            if session.peer is None or (silent and not self._mailbox.waits(session.peer)):
                self._close(session, "its edge is gone and the place is needed")
                return True
        return False
