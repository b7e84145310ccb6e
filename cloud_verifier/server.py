"""The server: messages in, messages out. One thread; while the engine works, mail is read between its layers.

No message ends it and no peer blocks it: a malformed message costs its sender a `Fault`, a slow reader its early
tokens first and its session last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from cloud_verifier.config import ServerConfig
from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.scheduler import Batch, Item, Prefill, Refused, Scheduler, Tally
from cloud_verifier.sessions import Session, SessionTable, refusal
from cloud_verifier.work import CapacityError, DraftEngine, Engine
from speculation import wire
from speculation.acceptance import Verdict
from speculation.profile import DeviceProfile
from speculation.sampling import SamplingSettings
from speculation.trace import Lane, Trace

_log = logging.getLogger("cloud_verifier")

IDLE_WAIT_S = 0.1
"""How long the server sleeps at most, so that a signal is seen."""
MAIL_PER_TURN = 64
"""Messages read in a row before work goes on."""


class Post(Protocol):
    """The server's side of a socket; see `cloud_verifier.mailbox.Mailbox`."""

    def wait(self, seconds: float) -> None: ...

    def receive(self) -> tuple[bytes, list[bytes]] | None: ...

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool: ...

    def flush(self) -> None: ...

    def forget(self, peer: bytes) -> None: ...


class Server:
    """Serves one engine to many edges; `run` until `stop`."""

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        profile: DeviceProfile,
        mailbox: Post,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.monotonic,
        self_draft: DraftEngine | None = None,
    ) -> None:
        self._engine = engine
        self._self_draft = self_draft
        self._model = engine.model
        self._profile = profile
        self._max_draft = config.max_draft
        self._mailbox = mailbox
        self._trace = trace
        self._clock = clock
        self._sessions = SessionTable(config.max_sessions, config.idle_s)
        self._scheduler = Scheduler(
            self._model,
            config.max_batch,
            config.max_draft,
            config.collect_s,
            config.pass_price,
            config.hint_tokens,
            self_drafts=self_draft is not None,
        )
        self._exits = ExitQueue(config.queue_policy, config.early_rate, config.early_burst, config.seed)
        self._stopping = False
        self._totals = Tally(step=0, begun_at=clock())
        self._steps = self._faults = self._overruns = 0

    def run(self) -> None:
        """Serve until `stop`, then tell every edge with a step under way and log a summary."""
        while not self._stopping:
            self.turn()
        for session in self._sessions.all:
            tally = self._scheduler.tally(session.row)
            if tally is not None and not tally.finished:
                self._send(session, wire.EndStep(tally.step, "the verifier was stopped"))
        _log.info(
            "stopped after %.0f s: sessions=%d steps=%d tokens=%d passes=%d tau=%.2f verified=%d "
            "hinted=%d decoded=%d waited=%.1fs early=%d early_dropped=%d faults=%d overruns=%d",
            self._clock() - self._totals.begun_at, self._sessions.opened, self._steps, self._totals.tokens,
            self._totals.passes, self._totals.tau, self._totals.verified, self._totals.hinted, self._totals.decoded,
            self._totals.waited_s, self._exits.sent, self._exits.dropped, self._faults, self._overruns,
        )  # fmt: skip

    def stop(self) -> None:
        """Make `run` return after the forward under way. Safe to call from a signal handler."""
        self._stopping = True

    def turn(self) -> None:
        """Read the mail, then do the most urgent piece of work."""
        self._attend(self._clock() + IDLE_WAIT_S, until_mail=True)
        work = self._scheduler.next(self._clock())
        if isinstance(work, Prefill):
            self._prefill(work)
        elif isinstance(work, Batch):
            self._verify(work)
        self._expire()

    # --- time: mail and early tokens go on while the engine, or a declared delay, takes its time

    def _attend(self, until: float, until_mail: bool = False) -> None:
        """Read mail and send early tokens until a time; `until_mail`: or until there is something to work on."""
        while True:
            self._mailbox.flush()
            got_mail = self._read_mail()
            self._send_early_tokens()
            now = self._clock()
            due = self._scheduler.next_time(now) if until_mail else None
            if now >= until or self._stopping or (until_mail and (got_mail or (due is not None and due <= now))):
                return
            times = [t for t in (until, due, self._exits.next_time(now)) if t is not None]
            self._mailbox.wait(min(times) - now)

    def _read_mail(self) -> bool:
        for count in range(MAIL_PER_TURN):
            mail = self._mailbox.receive()
            if mail is None:
                return count > 0
            self._open_mail(*mail)
        return True

    def _send_early_tokens(self) -> None:
        while (due := self._exits.pop(self._clock())) is not None:
            session = self._sessions.of_row(due[0])
            if session is not None:
                self._send(session, due[1], droppable=True)

    def _expire(self) -> None:
        for session in self._sessions.expired(self._clock()):
            self._close(session, f"silent for {self._sessions.idle_s:g} s")

    # --- mail

    def _open_mail(self, peer: bytes, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise wire.WireError(f"malformed message: {len(frames)} frames, expected 1")
            message = wire.decode(frames[0])
        except wire.WireError as error:
            too_large = len(frames) == 1 and len(frames[0]) > wire.MAX_MESSAGE_BYTES
            code = wire.FaultCode.TOO_LARGE if too_large else wire.FaultCode.MALFORMED
            self._refuse(peer, wire.Fault(code, str(error)))
            return
        if isinstance(message, wire.Hello):
            self._hello(peer, message)
            return
        session = self._sessions.of_peer(peer)
        if session is None:
            text = "no session: the verifier does not know you (it may have been restarted); send Hello again"
            self._refuse(peer, wire.Fault(wire.FaultCode.NO_SESSION, text, getattr(message, "step", None)))
            return
        session.last_seen = self._clock()
        try:
            self._dispatch(session, message)
        except Refused as error:
            self._refuse(peer, error.fault)

    def _dispatch(self, session: Session, message: wire.AnyMessage) -> None:
        now = self._clock()
        if isinstance(message, wire.Draft):
            for commit in self._scheduler.offer(session.row, message, now):
                self._send(session, commit)
        elif isinstance(message, wire.BeginStep):
            before = self._scheduler.tally(session.row)
            commits = self._scheduler.begin(session.row, message, now, session.sampling)
            if self._scheduler.tally(session.row) is not before:
                self._exits.overtake(session.row)
                self._log_step(session, before, "superseded")
            for commit in commits:
                self._send(session, commit)
        elif isinstance(message, wire.EndStep):
            tally = self._scheduler.end(session.row, message.step)
            if tally is not None:
                self._exits.overtake(session.row)
                self._log_step(session, tally, f"ended by the edge: {message.reason[:100]}")
        elif isinstance(message, wire.Fetch):
            for commit in self._scheduler.fetch(session.row, message):
                self._send(session, commit)
        elif isinstance(message, wire.Ping):
            self._send(session, wire.Pong(message.nonce))
        elif isinstance(message, wire.Fault):
            _log.warning("session %d reports %s: %s", session.number, message.code.name, message.message)
        elif not isinstance(message, wire.Pong):
            text = f"malformed message: {type(message).__name__} goes from verifier to edge only"
            raise Refused(wire.FaultCode.MALFORMED, text)

    def _hello(self, peer: bytes, hello: wire.Hello) -> None:
        now = self._clock()
        fault = refusal(hello, self._model)
        if fault is not None:
            self._refuse(peer, fault)
            return
        session = self._sessions.of_token(hello.resume)
        known = self._sessions.of_peer(peer)
        if known is not None and known is not session:
            self._close(known, "said Hello again")
        if session is not None:
            self._sessions.attach(session, peer, now)
            _log.info("session %d resumed", session.number)
        else:
            if self._sessions.full:
                self._drop_dead_sessions()
            if self._sessions.full:
                text = f"all {self._sessions.limit} sessions are taken (--max-sessions); try again later"
                self._refuse(peer, wire.Fault(wire.FaultCode.SERVER_FULL, text))
                return
            session = self._sessions.open(peer, now)
            _log.info("session %d opened: class=%s of %d", session.number, hello.service_class, len(self._sessions))
        session.sampling = SamplingSettings.parse(hello.sampling)
        model = self._model
        welcome = wire.Welcome(
            session=session.token,
            model=model.fingerprint,
            tokenizer=model.tokenizer_fingerprint,
            vocabulary=model.vocabulary,
            num_layers=model.num_layers,
            exit_layers=list(model.exit_layers),
            eos=list(model.eos),
            max_draft=self._max_draft,
            profile=self._profile.name,
            colours=list(model.objects.colours) if model.objects is not None else [],
            classes=list(model.objects.classes) if model.objects is not None else [],
        )
        self._send(session, welcome)

    # --- work

    def _prefill(self, work: Prefill) -> None:
        begin, started = work.begin, self._clock()
        try:
            self._engine.prefill(work.row, begin.prompt, begin.jpeg, work.state.answer, begin.max_tokens)
            if self._self_draft is not None and begin.self_draft:
                self._self_draft.prefill(work.row, begin.prompt, begin.jpeg, begin.max_tokens)
        except CapacityError as error:
            self._give_up(work.row, wire.FaultCode.TOO_LARGE, str(error))
        except ValueError as error:
            self._give_up(work.row, wire.FaultCode.BAD_IMAGE, str(error))
        except Exception as error:
            _log.exception("prefill failed")
            self._give_up(work.row, wire.FaultCode.INTERNAL, f"the verifier's prefill failed: {error}")
        else:
            now = self._clock()
            self._scheduler.prefilled(work, now, now - started)
            self._record("prefill", started, now, step=begin.step)

    def _verify(self, batch: Batch) -> None:
        """Run one target forward; exits leave as their layers are done, commits at the end."""
        began = self._clock()
        layers = self._model.num_layers
        verdicts: dict[int, Verdict] = {}
        try:
            batch = self._draft_here(batch)
            started = self._clock()
            for output in self._engine.verify([item.request for item in batch.items]):
                verdicts = dict(output.verdicts)
                if output.layer == layers - 1:
                    self._note_overrun("a forward", self._clock() - started, self._profile.verify_s)
                self._attend(started + self._profile.layer_due_s(output.layer, layers))
                if output.layer < layers - 1:
                    self._queue_early(batch, output.layer, verdicts)
                    self._send_early_tokens()
            now = self._clock()
            self._scheduler.measured(batch, now - started)
            for item in batch.items:
                self._commit(item, verdicts[item.row], now, now - began)
        except Exception as error:
            _log.exception("verification failed")
            for item in batch.items:
                if self._scheduler.is_current(item):
                    self._give_up(item.row, wire.FaultCode.INTERNAL, f"the verifier's forward failed: {error}")
            return
        drafted = sum(len(item.tree.tokens) for item in batch.items)
        self._record("verify", started, now, sessions=len(batch.items), drafted=drafted)

    def _draft_here(self, batch: Batch) -> Batch:
        """Let the draft model beside the target draft for the steps that ask for it, all in the same forwards."""
        wishes = [wish for item in batch.items if (wish := item.wish) is not None]
        if self._self_draft is None or not wishes:
            return batch
        started = last = self._clock()
        drafts: Mapping[int, tuple[int, ...]] = {}
        for turn, so_far in enumerate(self._self_draft.draft(wishes), start=1):
            drafts = so_far
            self._note_overrun("a draft forward", self._clock() - last, self._profile.server_draft_s)
            self._attend(started + turn * self._profile.server_draft_s)
            last = self._clock()
        self._record("draft", started, last, sessions=len(wishes), drafted=sum(map(len, drafts.values())))
        return Batch(tuple(item.with_draft(drafts[item.row]) if item.row in drafts else item for item in batch.items))

    def _queue_early(self, batch: Batch, layer: int, verdicts: dict[int, Verdict]) -> None:
        now = self._clock()
        for item in batch.items:
            verdict = verdicts.get(item.row)
            # Where the verifier goes on alone, the edge knows no node but the root.
            nameless = item.tree.round == 0 and verdict is not None and bool(verdict.path)
            if verdict is not None and not nameless and self._scheduler.is_current(item):
                node = item.tree.nodes[verdict.path[-1]] if verdict.path else item.tree.origin
                confidence = min(1.0, max(0.0, verdict.confidence))
                early = wire.EarlyTokens(
                    item.state.step,
                    item.tree.round,
                    item.state.position + len(verdict.path),
                    node,
                    verdict.token,
                    layer,
                    confidence,
                )
                self._exits.push(item.row, early, now)

    def _commit(self, item: Item, verdict: Verdict, now: float, compute_s: float) -> None:
        outcome = self._scheduler.accept(item, verdict, now, compute_s)
        if outcome is None:
            return
        self._totals.count(item.act, len(outcome.commit.tokens))
        self._exits.overtake(item.row)
        session = self._sessions.of_row(item.row)
        if session is not None:
            self._send(session, outcome.commit)
            if outcome.commit.done:
                self._log_step(session, self._scheduler.tally(item.row), "done")
        if outcome.keep:
            self._engine.keep(item.row, verdict.path, verdict.token)

    def _give_up(self, row: int, code: wire.FaultCode, text: str) -> None:
        tally = self._scheduler.end(row)
        session = self._sessions.of_row(row)
        if session is not None and session.peer is not None and tally is not None:
            self._refuse(session.peer, wire.Fault(code, text, tally.step))

    def _note_overrun(self, what: str, seconds: float, declared: float) -> None:
        if declared and seconds > declared:
            if not self._overruns:
                _log.warning(
                    "%s took %.1f ms, profile %s declares %.1f ms: times are not the profile's (logged once)",
                    what, seconds * 1e3, self._profile.name, declared * 1e3,
                )  # fmt: skip
            self._overruns += 1

    # --- peers

    def _send(self, session: Session, message: wire.AnyMessage, droppable: bool = False) -> None:
        if session.peer is None:
            return
        if self._mailbox.send(session.peer, message, droppable):
            session.last_seen = self._clock()
        else:
            _log.info("session %d lost its edge", session.number)
            self._mailbox.forget(session.peer)
            self._sessions.detach(session)
            self._scheduler.suspend(session.row)
            self._exits.overtake(session.row)

    def _refuse(self, peer: bytes, fault: wire.Fault) -> None:
        self._faults += 1
        session = self._sessions.of_peer(peer)
        who = f"session {session.number}" if session else "a peer without session"
        _log.warning("refused %s: %s: %s", who, fault.code.name, fault.message[:300])
        self._mailbox.send(peer, wire.Fault(fault.code, fault.message[:1000], fault.step), droppable=session is None)

    def _close(self, session: Session, why: str) -> None:
        self._log_step(session, self._scheduler.end(session.row), why)
        self._exits.close(session.row)
        self._scheduler.forget(session.row)
        if session.peer is not None:
            self._mailbox.forget(session.peer)
        self._sessions.close(session)
        _log.info("session %d closed: %s", session.number, why)

    def _drop_dead_sessions(self) -> None:
        """Make room: an edge that cannot even be pinged gives its place up."""
        for session in self._sessions.all:
            if session.peer is not None:
                self._send(session, wire.Ping(0), droppable=True)
            if session.peer is None:
                self._close(session, "its edge is gone and the place is needed")

    # --- records

    def _log_step(self, session: Session, tally: Tally | None, how: str) -> None:
        if tally is None or (tally.finished and how != "done"):
            return
        self._steps += 1
        now = self._clock()
        _log.info(
            "session %d step %d %s: tokens=%d passes=%d tau=%.2f verified=%d hinted=%d decoded=%d waited=%.1fms "
            "prefill=%.1fms total=%.1fms",
            session.number, tally.step, how, tally.tokens, tally.passes, tally.tau, tally.verified, tally.hinted,
            tally.decoded, tally.waited_s * 1e3, tally.prefill_s * 1e3, (now - tally.begun_at) * 1e3,
        )  # fmt: skip
        self._totals.waited_s += tally.waited_s
        self._record("step", tally.begun_at, now, session=session.number, step=tally.step, tokens=tally.tokens)

    def _record(self, name: str, start: float, end: float, **args: int) -> None:
        if self._trace is not None:
            self._trace.add(name, Lane.CLOUD, start, end, **args)
