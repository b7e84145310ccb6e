"""The server's loop: messages in, messages out. One thread; while the engine works, messages are read between layers.

No message ends it (`Inbox`) and no peer blocks it (`Outbox`): a slow reader loses its early tokens first and its
session last. Frames are decoded beside it (`ImageDecoding`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cloud_verifier.config import ServerConfig
from cloud_verifier.declared_times import DeclaredTimes
from cloud_verifier.events import Events
from cloud_verifier.executor import Executor
from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.image_decoding import ImageDecoding
from cloud_verifier.inbox import Inbox, Quotas
from cloud_verifier.interfaces import Post
from cloud_verifier.kv_admission import KvAdmission
from cloud_verifier.machine import Machine
from cloud_verifier.monitoring import series
from cloud_verifier.monitoring.figures import Figures, Phase, figures_of
from cloud_verifier.outbox import Outbox
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.session_lifecycle import DRAINING, SessionLifecycle
from cloud_verifier.sessions import SILENT_S, Session, SessionTable
from cloud_verifier.slo import Membership, SloAttainment, Standing
from cloud_verifier.step_admission import StepAdmission, preparer
from cloud_verifier.step_log import Spans, StepLog
from speculation import wire
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
STOPPED, SHED = "the verifier was stopped", "others have more room"


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
        self._mailbox, self._clock, self._membership = mailbox, clock, membership
        limits = config.limits
        self._sessions = SessionTable(limits.max_sessions)
        self._scheduler = Scheduler(machine.serves(limits), config.scheduling, limits, machine.costs())
        self._memory = KvAdmission(machine.engine.blocks)
        early = config.early
        self._exits = ExitQueue(early.queue_policy, early.early_rate, early.early_burst)
        self.figures = figures or Figures(clock)
        self.step_log, self._attainment = StepLog(), SloAttainment()
        spans = [Spans(trace).take] if trace is not None else []
        events = Events(self.figures.take, self.step_log.take, self._attainment.take, *spans)
        self.outbox = Outbox(mailbox, self._sessions, self._scheduler, self._exits, self.figures, events, clock)
        times = DeclaredTimes(machine.profile, self._attend_until, clock)
        self._executor = Executor(
            machine, times, self._scheduler, self._memory, self.outbox, events, self._attend, clock
        )
        self._decoding = ImageDecoding(preparer(machine, limits), mailbox.notify, preparation_threads, clock)
        self._admission = StepAdmission(
            machine, limits.max_draft, self._decoding, self._scheduler, self._memory, self.outbox, self._executor, clock
        )
        self._lifecycle = SessionLifecycle(
            machine, config, mailbox, self._sessions, self._memory, self.outbox, membership, clock
        )
        self._inbox = Inbox(
            self._sessions, self._scheduler, Quotas(config.quotas), self._admission, self._lifecycle, self.outbox,
            events, clock,
        )  # fmt: skip
        self._drain_s = limits.drain_s
        self._drained_at: float | None = None
        """When robots that are still here are sent elsewhere in the midst of their answers."""
        self._to_shed = 0
        """Robots that are to go elsewhere although this verifier goes on."""
        self._stopping = False
        self._begun_at = clock()
        self._reported_at = self._begun_at - REPORT_S
        self._tell_at = self._begun_at

    def run(self, hang_s: float | None = None) -> None:
        """Serve until `stop`, then end every step under way, or send it elsewhere in a cluster, and log a summary.

        While an image or a layer takes long, a thread tells robots that their verifier works, for `hang_s` seconds at
        most: what takes longer hangs. None: nobody does, as for a `Post` that may be used by one thread only.
        """
        if not self._lifecycle.is_draining:  # as soon as the models were there
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
                self._lifecycle.send_away(session, STOPPED)
            elif step is not None and not step.done:
                self.outbox.send(session, wire.EndStep(step.number, STOPPED))
        _log.info(
            "stopped after %.0f s: sessions=%d steps=%d %s early=%d early_dropped=%d faults=%d busy=%d evicted=%d "
            "ignored=%d",
            self._clock() - self._begun_at, self._sessions.opened, self.step_log.steps, self.step_log.totals,
            self._exits.sent, self._exits.dropped, self.outbox.faults, self.outbox.busy, self.outbox.evicted,
            self._inbox.ignored,
        )  # fmt: skip

    def stop(self) -> None:
        """Make `run` return after the forward under way. Safe to call from a signal handler."""
        self._stopping = True

    def drain(self) -> None:
        """Take no more robots, send those that are here elsewhere, and let `run` return when none is left.

        Each goes when its answer is done, after `drain_s` at once. Where `drain_s` is 0 this is `stop`, but for one of
        a cluster. Safe to call again, from a signal handler and in any thread.
        """
        self._lifecycle.is_draining = True
        self.figures.phase = Phase.DRAINING
        self._stopping = self._stopping or not (self._drain_s or self._membership is not None)

    def shed(self, robots: int) -> None:
        """Send so many robots elsewhere, each when its answer is done. Safe to call in any thread."""
        self._to_shed = robots

    def turn(self) -> None:
        """Read messages, then do the most urgent piece of work, or wait for some."""
        got_messages = self._attend()
        self._lifecycle.expire()
        self._admission.turn()  # no pass is under way, so a row may begin anew
        self._send_away()
        batch = self._scheduler.next(self._clock())
        for step in batch.encodes:
            self._executor.encode(step)
        if batch.chunks or batch.choices:
            self._executor.run(batch)
        # Between two forwards is one image at most, the target's before another.
        reads = not self._scheduler.image_waits and self._executor.read_on()
        if not (got_messages or batch or reads or self._stopping):
            now = self._clock()
            times = [t for t in (now + IDLE_WAIT_S, batch.again, self._exits.next_time(now)) if t is not None]
            self._mailbox.wait(min(times) - now)

    # --- robots that go elsewhere

    def _send_away(self) -> None:
        """Send elsewhere who is to go and may go now, between two answers or when it is time."""
        if self._lifecycle.is_draining:
            self._drain_on()
        for session in self._sessions.all if self._to_shed else ():
            if self._to_shed and session.peer is not None and self._is_between_answers(session):
                self._to_shed -= 1
                self._lifecycle.send_away(session, SHED)

    def _drain_on(self) -> None:
        """Send away all that may go now; where none is left, `run` is to return."""
        now = self._clock()
        if self._drained_at is None:
            self._drained_at = now + self._drain_s
            _log.info("draining: %d robots go elsewhere, within %g s", len(self._sessions), self._drain_s)
            for session in self._sessions.all:
                if not self._is_between_answers(session):  # nobody waits for a robot that is gone
                    self.outbox.send(session, wire.Ping(0), droppable=True)
        for session in self._sessions.all:
            if session.peer is None or self._is_between_answers(session) or now >= self._drained_at:
                self._lifecycle.send_away(session, DRAINING)
        self._stopping = self._stopping or not len(self._sessions)

    def _is_between_answers(self, session: Session) -> bool:
        step = self._scheduler.step(session.index)
        return step is None or step.done

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
            self._inbox.receive(*received)
        return True

    def _standing(self, now: float) -> Standing:
        promises = self._attainment
        promises.asked(self._scheduler.asked, now - self._reported_at, now)
        memory = 1.0 - self._memory.free / self._memory.blocks
        # Those of robots that are gone make room for others, see `SessionLifecycle`.
        here = sum(each.peer is not None and now - each.last_received <= SILENT_S for each in self._sessions.all)
        return Standing(here, memory, promises.utilisation(now), promises.late(now), self._lifecycle.is_draining)

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
            (series.IGNORED, self._inbox.ignored),
            (series.EARLY_SENT, self._exits.sent),
            (series.EARLY_DROPPED, self._exits.dropped),
            (series.MAIL_DROPPED, self._mailbox.dropped),
            (series.FRONTEND_RESTARTS, self._mailbox.restarts),
        ):
            figures.set(gauge, value)
        full = self._sessions.full and all(each.state != "away" and each.silent_s <= SILENT_S for each in sessions)
        problem = f"full: all {self._sessions.limit} sessions are taken (--max-sessions)" if full else ""
        figures.publish(now, sessions, problem)
