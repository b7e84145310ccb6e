"""The server: messages in, messages out. One thread; while the engine works, messages are read between its layers.

No message ends it and no peer blocks it: a malformed message costs its sender a `Fault`, many of them are not read any
more, a slow reader loses its early tokens first and its session last. Frames are decoded beside it (`Preparation`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cloud_verifier.config import ServerConfig
from cloud_verifier.estimator import Estimator
from cloud_verifier.exit_queue import ExitQueue
from cloud_verifier.limits import Allowance
from cloud_verifier.memory import Admission, NoRoom
from cloud_verifier.policies import Batch
from cloud_verifier.preparation import Preparation, Prepared
from cloud_verifier.scheduler import Refused, Scheduler
from cloud_verifier.sessions import Session, SessionTable, refusal, welcome
from cloud_verifier.step import Step, Tally
from cloud_verifier.tree import Tree
from cloud_verifier.work import CapacityError, DraftEngine, Engine, LayerVerdicts, Post, Row
from speculation import wire
from speculation.cancellation import Abandoned, Stop
from speculation.pass_cost import Load, PassCost
from speculation.profiles import DeviceProfile
from speculation.sampling import SamplingScheme
from speculation.text import printable
from speculation.trace import Lane, Trace
from speculation.vlm.blocks import blocks_for

_log = logging.getLogger("cloud_verifier")

IDLE_WAIT_S = 0.1
"""How long the server sleeps at most, so that a signal is seen."""
MESSAGES_PER_TURN, READ_S = 64, 0.01
"""Messages that are read in a row, and seconds, before work goes on."""
REFUSALS_PER_S, REFUSALS_AT_ONCE = 5.0, 30
"""Refused messages and Hellos that a peer may send; beyond, what it sends is dropped unread."""
SILENT_S = 6.0
"""An edge pings four times a second. A session that was silent for so long is closed when a new one needs its row."""


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
        preparation_threads: int = 0,
        cost: PassCost | None = None,
    ) -> None:
        self._engine = engine
        self._self_draft = self_draft
        self._model = engine.model
        self._profile = profile
        self._max_draft = config.limits.max_draft
        self._mailbox = mailbox
        self._trace = trace
        self._clock = clock
        self._sessions = SessionTable(config.limits.max_sessions, config.limits.idle_s)
        self._scheduler = Scheduler(
            self._model, config.scheduling, config.limits, self_draft is not None, Estimator(cost)
        )
        self._preparation = Preparation(self._prepare, mailbox.notify, preparation_threads, clock)
        self._memory = Admission(engine.blocks)
        self._admissible: dict[int, Prepared[tuple[Any, Any]]] = {}
        """What waits for memory, by row."""
        self._rows: dict[int, Step] = {}
        """Whose keys and values the rows of the engine hold."""
        self._allowance = Allowance(REFUSALS_PER_S, REFUSALS_AT_ONCE)
        early = config.early
        self._exits = ExitQueue(early.queue_policy, early.early_rate, early.early_burst, early.seed)
        self._stopping = False
        self._totals = Tally()
        self._begun_at = clock()
        self._steps = self._faults = self._busy = self._evicted = self._ignored = self._overruns = 0

    def run(self) -> None:
        """Serve until `stop`, then end every step under way and log a summary."""
        while not self._stopping:
            self.turn()
        self._preparation.close()
        for session in self._sessions.all:
            step = self._scheduler.step(session.index)
            if step is not None and not step.done:
                self._send(session, wire.EndStep(step.number, "the verifier was stopped"))
        _log.info(
            "stopped after %.0f s: sessions=%d steps=%d %s early=%d early_dropped=%d faults=%d busy=%d evicted=%d "
            "ignored=%d overruns=%d",
            self._clock() - self._begun_at, self._sessions.opened, self._steps, self._totals, self._exits.sent,
            self._exits.dropped, self._faults, self._busy, self._evicted, self._ignored, self._overruns,
        )  # fmt: skip

    def stop(self) -> None:
        """Make `run` return after the forward under way. Safe to call from a signal handler."""
        self._stopping = True

    def turn(self) -> None:
        """Read messages, then do the most urgent piece of work."""
        self._attend(self._clock() + IDLE_WAIT_S, until_work=True)
        batch = self._scheduler.next(self._clock())
        for step in batch.encodes:
            self._encode(step)
        if batch.chunks or batch.choices:
            self._forward(batch)
        self._expire()

    # --- time: messages and early tokens go on while the engine, or a declared delay, takes its time

    def _attend(self, until: float, until_work: bool = False, steps: Sequence[Step] = ()) -> None:
        """Read messages and send early tokens until a time.

        `until_work`: or until there is something to work on. `steps`: or until none of them is wanted any more.
        """
        while True:
            got_messages = self._read_messages()
            if until_work:  # no pass is under way, so a row may begin anew
                self._take_prepared()
            self._send_early_tokens()
            now = self._clock()
            if steps and not self._is_wanted(steps):
                return
            if until_work:
                self._scheduler.wait(now)
            due = self._scheduler.next_time(now) if until_work else None
            if now >= until or self._stopping or (until_work and (got_messages or (due is not None and due <= now))):
                return
            times = [t for t in (until, due, self._exits.next_time(now)) if t is not None]
            self._mailbox.wait(min(times) - now)

    def _read_messages(self) -> bool:
        until = self._clock() + READ_S
        for count in range(MESSAGES_PER_TURN):
            received = self._mailbox.receive() if self._clock() <= until else None
            if received is None:
                return count > 0
            self._receive(*received)
        return True

    def _take_prepared(self) -> None:
        """Let steps whose frames are decoded ask for memory, and those that get it begin. No pass is under way."""
        now = self._clock()
        self._free_rows(now)
        for ready in self._preparation.collect():
            step = ready.step
            if not self._scheduler.is_current(step):
                continue
            try:
                if ready.inputs is None:
                    raise ready.error or RuntimeError("a frame came to nothing")
                self._memory.ask(step.index, self._need(step, *ready.inputs), now)
                self._admissible[step.index] = ready
            except NoRoom as full:
                self._send_busy(step, full)
            except Exception as error:
                self._cannot_prefill(step, error)
        granted, evicted = self._memory.grant(now, self._idle(now) if self._memory.line else ())
        for index in evicted:
            self._evict(index)
        for index in granted:
            self._begin(self._admissible.pop(index))

    def _free_rows(self, now: float) -> None:
        """Take back what is held, or waited for, for steps that are over."""
        for index, step in list(self._rows.items()):
            if step.done or not self._scheduler.is_current(step):
                self._release(index)
                self._memory.release(index, now)
        for index, ready in list(self._admissible.items()):
            if not self._scheduler.is_current(ready.step):
                del self._admissible[index]
                self._memory.release(index, now)

    def _release(self, index: int) -> None:
        del self._rows[index]
        self._engine.release(index)
        if self._self_draft is not None:
            self._self_draft.release(index)

    def _need(self, step: Step, own: Any, beside: Any) -> int:
        """Return the blocks that a step may come to hold. Raises CapacityError where there are not so many."""
        prompt = self._engine.size(own)
        if self._self_draft is not None and beside is not None:
            prompt = max(prompt, self._self_draft.size(beside))
        need = blocks_for(prompt + step.max_tokens + self._max_draft)
        if need > self._memory.blocks:
            raise CapacityError(
                f"image and prompt of {prompt} tokens, an answer of {step.max_tokens} and a draft of {self._max_draft} "
                f"need {need} blocks of memory, there are {self._memory.blocks}; start the verifier with more --memory"
            )
        return need

    def _begin(self, ready: Prepared[tuple[Any, Any]]) -> None:
        """Let a step that has its memory be prefilled."""
        step = ready.step
        self._rows[step.index] = step
        try:
            assert ready.inputs is not None, "only what was prepared asks for memory"
            own, _ = ready.inputs
            tokens = self._engine.begin(step.index, own, step.answer, step.max_tokens)
            step.prepared(ready.inputs, ready.seconds, tokens, self._engine.size(own))
        except Exception as error:
            self._cannot_prefill(step, error)

    def _idle(self, now: float) -> list[int]:
        """Return the rows that may be evicted, the first one first."""
        silent = {
            each.index
            for each in self._sessions.all
            if now - each.last_received > SILENT_S and not (each.peer and self._mailbox.waits(each.peer))
        }
        return [row for row in self._scheduler.idle(now, silent) if row in self._rows]

    def _evict(self, index: int) -> None:
        """Give an idle step's memory to others. Its edge begins it again where it stands, when it goes on."""
        self._release(index)
        step = self._scheduler.evict(index)
        session = self._sessions.of_index(index)
        self._evicted += 1
        self._exits.overtake(index)
        if session is None or step is None:
            return
        self._log_step(session, step, "evicted")
        if session.peer is not None:
            text = "the step waited for long and its memory is with others; send Hello and BeginStep again"
            self._refuse(session.peer, wire.Fault(wire.FaultCode.NO_SESSION, text, step.number))

    def _send_busy(self, step: Step, full: NoRoom) -> None:
        """End a step that cannot be taken now, with a time for its edge to begin it again."""
        self._scheduler.end(step.index)
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None and session.peer is not None:
            self._allowance.take(session.peer, self._clock())
            self._busy += 1
            _log.info("session %d step %d: %s; again in %.1f s", session.number, step.number, full, full.retry_after_s)
            self._send(session, wire.Busy(full.retry_after_s, str(full), step.number))

    def _send_early_tokens(self) -> None:
        while (due := self._exits.pop(self._clock())) is not None:
            session = self._sessions.of_index(due[0])
            if session is not None:
                self._send(session, due[1], droppable=True)

    def _expire(self) -> None:
        for session in self._sessions.expired(self._clock()):
            self._close(session, f"silent for {self._sessions.idle_s:g} s")

    # --- messages

    def _receive(self, peer: bytes, frames: list[bytes]) -> None:
        if self._allowance.left(peer, self._clock()) < 1.0:
            self._ignored += 1
            return
        try:
            if len(frames) != 1:
                raise wire.WireError("malformed message: more than one frame, expected 1")
            message = wire.decode(frames[0])
        except wire.WireError as error:
            large = len(frames[0]) > wire.MAX_MESSAGE_BYTES
            code = wire.FaultCode.TOO_LARGE if large else wire.FaultCode.MALFORMED
            self._refuse(peer, wire.Fault(code, str(error)))
            return
        session = self._sessions.of_peer(peer)
        try:
            if isinstance(message, wire.Hello):
                self._allowance.take(peer, self._clock())
                self._hello(peer, message)
            elif session is None:
                text = "no session: this connection has none (the verifier may have been restarted); send Hello again"
                raise Refused(wire.FaultCode.NO_SESSION, text, getattr(message, "step", None))
            else:
                session.last_seen = session.last_received = self._clock()
                self._dispatch(session, message)
        except Refused as error:
            self._refuse(peer, error.fault)
        except Exception as error:
            # A message that fails in a way that is not foreseen ends its sender's step and not the server.
            _log.exception("a %s could not be taken", type(message).__name__)
            text = f"the verifier failed over this {type(message).__name__}: {type(error).__name__}"
            self._refuse(peer, wire.Fault(wire.FaultCode.INTERNAL, text, getattr(message, "step", None)))
            if session is not None:
                self._log_step(session, self._scheduler.end(session.index), "failed")
                self._exits.overtake(session.index)

    def _dispatch(self, session: Session, message: wire.AnyMessage) -> None:
        now = self._clock()
        if isinstance(message, wire.Draft):
            for commit in self._scheduler.offer(session.index, message, now):
                self._send(session, commit)
            step = self._scheduler.step(session.index)
            if step is not None and step.done:  # a token of the edge may end the answer
                self._log_step(session, step, "done")
        elif isinstance(message, wire.BeginStep):
            before = self._scheduler.step(session.index)
            commits = self._scheduler.begin(session.index, message, now, session.sampling, session.service_class)
            step = self._scheduler.step(session.index)
            if step is not None and step is not before:
                self._exits.overtake(session.index)
                self._log_step(session, before, "superseded")
                if step.begin is not None:
                    try:
                        self._memory.check_prefill(session.index, now, self._scheduler.active(session.index))
                        self._memory.check(session.index, now)
                    except NoRoom as full:
                        self._send_busy(step, full)
                        return
                    self._preparation.submit(step, step.begin)
            for commit in commits:
                self._send(session, commit)
        elif isinstance(message, wire.EndStep):
            step = self._scheduler.end(session.index, message.step)
            if step is not None:
                self._exits.overtake(session.index)
                self._log_step(session, step, f"ended by the edge: {message.reason[:100]}")
        elif isinstance(message, wire.Fetch):
            for commit in self._scheduler.fetch(session.index, message):
                self._send(session, commit)
        elif isinstance(message, wire.Ping):
            self._send(session, wire.Pong(message.nonce))
        elif isinstance(message, wire.Fault):
            self._allowance.take(session.peer, now)
            _log.warning("session %d reports %s: %s", session.number, message.code.name, message.message[:300])
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
            self._close(known, "sent Hello again", same_robot=True)
        if session is not None:
            if session.peer is not None and session.peer != peer:
                self._mailbox.admit(session.peer, False)
            self._sessions.attach(session, peer, now)
            _log.info("session %d resumed", session.number)
        else:
            if self._sessions.full:
                self._drop_dead_sessions()
            if self._sessions.full:
                # A place becomes free at the earliest when a robot was silent for so long.
                wait = self._memory.later(SILENT_S)
                text = f"all {self._sessions.limit} sessions are taken (--max-sessions)"
                self._busy += 1
                if self._allowance.take(b"", now):
                    _log.warning("a robot has no place: %s; again in %.1f s", text, wait)
                self._mailbox.send(peer, wire.Busy(wait, text), droppable=True)
                return
            session = self._sessions.open(peer, now)
            _log.info("session %d opened: class=%s of %d", session.number, hello.service_class, len(self._sessions))
        self._mailbox.admit(peer)
        session.sampling = SamplingScheme.parse(hello.sampling)
        session.service_class = hello.service_class
        self._send(session, welcome(session, self._model, self._max_draft, self._profile.name))

    # --- work

    def _prepare(self, begin: wire.BeginStep) -> tuple[Any, Any]:
        """Return the inputs of target and draft model; in a thread of `Preparation`."""
        wants = begin.self_draft or begin.idle is wire.Idle.LEDGER
        beside = self._self_draft if wants else None
        inputs = self._engine.prepare(begin.prompt, begin.jpeg)
        return inputs, beside and beside.prepare(begin.prompt, begin.jpeg)

    def _encode(self, step: Step) -> None:
        """Encode a step's image."""
        started = self._clock()
        try:
            self._engine.encode(step.index, self._unwanted(step))
        except Abandoned:
            return
        except Exception as error:
            self._cannot_prefill(step, error)
            return
        finally:
            self._memory.prefilled(step.index, self._clock() - started, self._clock())
        self._record("encode", started, self._clock(), step=step.number)
        step.encoded = True
        self._fed(step, 0, started)

    def _fed(self, step: Step, tokens: int, started: float) -> None:
        """Note what was fed of a prefill; at its end the draft model beside the target reads the prompt, too."""
        if not self._scheduler.is_current(step):
            return
        try:
            if step.prompt_left == tokens:
                _, step.draft_inputs = cast("tuple[Any, Any]", step.inputs)
                drafting = self._scheduler.drafting
                # A ledger's first step shows what it takes; later ones are prefilled when their ledger so chooses.
                if drafting is not None and (step.self_draft or drafting.prefill_s is None):
                    self._prefill_draft(step, self._unwanted(step))
        except Abandoned:
            return
        except Exception as error:
            self._cannot_prefill(step, error)
            return
        now = self._clock()
        step.fed(tokens, now, now - started)
        if tokens:
            self._record("prefill", started, now, step=step.number, tokens=tokens)

    def _unwanted(self, *steps: Step) -> Stop:
        """Return what reads messages and is true once all of these steps were ended or superseded."""

        def stop() -> bool:
            self._attend(self._clock())
            return not self._is_wanted(steps)

        return stop

    def _prefill_draft(self, step: Step, stop: Stop) -> None:
        """Prefill the draft model beside the target for a step, where it is not yet. Raises as `DraftEngine.prefill`.

        Where that has no room for a step that needs no draft of it, nothing is raised: it gets none.
        """
        assert self._self_draft is not None and self._scheduler.drafting is not None, "no model drafts here"
        if step.draft_inputs is None:
            return
        started = self._clock()
        try:
            self._self_draft.prefill(step.index, step.draft_inputs, step.max_tokens, stop)
        except CapacityError:
            step.draft_prefilled(done=False)
            if step.self_draft:
                raise
        else:
            step.draft_prefilled()
            self._scheduler.drafting.prefill(self._clock() - started)
        finally:
            self._memory.prefilled(step.index, self._clock() - started, self._clock())

    def _cannot_prefill(self, step: Step, error: Exception) -> None:
        """End a step whose prompt or frame cannot be read, or does not fit."""
        if isinstance(error, CapacityError):
            self._give_up(step, wire.FaultCode.TOO_LARGE, str(error))
        elif isinstance(error, ValueError):
            self._give_up(step, wire.FaultCode.BAD_IMAGE, str(error))
        else:
            _log.error("prefill failed", exc_info=error)
            self._give_up(step, wire.FaultCode.INTERNAL, f"the verifier's prefill failed: {error}")

    def _forward(self, batch: Batch) -> None:
        """Run one target forward; exits leave as their layers are done, commits at the end.

        It ends after a layer, and so does the wait for its declared time, when none of its steps is wanted any more.
        """
        began, steps, everyone = self._clock(), tuple(batch.choices), (*batch.choices, *batch.chunks)
        layers = self._model.num_layers
        output = LayerVerdicts(-1, {})
        try:
            self._draft_here(steps)
            if not self._is_wanted(everyone):
                return
            started, rows = self._clock(), [*_rows(steps), *_chunk_rows(batch)]
            for output in self._engine.verify(rows):
                declared = self._profile.layer_due_s(output.layer, layers) if steps else 0.0
                if output.layer == layers - 1 and not batch.chunks:
                    self._note_overrun("a forward", self._clock() - started, self._profile.verify_s)
                self._attend(started + declared, steps=everyone)
                if not self._is_wanted(everyone):
                    return
                if output.layer < layers - 1:
                    self._queue_early(steps, output)
                    self._send_early_tokens()
        except Exception as error:
            _log.exception("a forward failed")
            for step in everyone:
                self._give_up(step, wire.FaultCode.INTERNAL, f"the verifier's forward failed: {error}")
            return
        now = self._clock()
        if steps:  # prompts alone say little of the small forwards that are predicted
            self._scheduler.estimates.observe(Load.total(row.load for row in rows), now - started)
            self._record("verify", started, now, sessions=len(steps), drafted=sum(len(row.tokens) for row in rows))
        for step in steps:
            try:
                if self._scheduler.is_current(step):
                    self._commit(step, output, now, now - began)
            except Exception as error:
                _log.error("a verdict failed", exc_info=error)
                self._give_up(step, wire.FaultCode.INTERNAL, f"the verifier could not judge this step: {error}")
        new = sum(row.load.new for row in rows)
        for step, tokens in batch.chunks.items():
            self._memory.prefilled(step.index, (now - started) * tokens / new, now)
            self._fed(step, tokens, started)

    def _draft_here(self, steps: tuple[Step, ...]) -> None:
        """Let the draft model beside the target draft for the steps that request it, all in the same forwards.

        Where it fails, those steps end; the others of the batch go on.
        """
        asking = [step for step in steps if step.row is not None and step.row.self_draft]
        try:
            self._make_drafts(asking, steps)
        except Exception as error:
            _log.exception("drafting failed")
            for step in asking:
                self._give_up(step, wire.FaultCode.INTERNAL, f"the verifier's drafting failed: {error}")

    def _make_drafts(self, asking: Sequence[Step], steps: tuple[Step, ...]) -> None:
        if self._self_draft is None or self._scheduler.drafting is None or not asking:
            return
        began, stop = self._clock(), self._unwanted(*steps)
        try:
            for step in asking:
                self._prefill_draft(step, stop)
        except Abandoned:
            return
        rows = _rows(tuple(step for step in asking if step.drafts_here))
        if not rows:
            return
        started = last = self._clock()
        drafts: Mapping[int, Tree] = {}
        for turn, so_far in enumerate(self._self_draft.draft(rows), start=1):
            drafts = so_far
            self._note_overrun("a draft forward", self._clock() - last, self._profile.server_draft_s)
            self._attend(started + turn * self._profile.server_draft_s, steps=steps)
            if not self._is_wanted(steps):
                return
            self._scheduler.drafting.forward(turn, self._clock() - last)
            last = self._clock()
            if not self._scheduler.goes_on(drafts, turn + 1, last - began, last):
                break
        self._record(
            "draft", started, last, sessions=len(rows), drafted=sum(len(each.tokens) for each in drafts.values())
        )
        for step in steps:
            if step.index in drafts:
                step.draft_here(drafts[step.index], last - began, last)

    def _is_wanted(self, steps: Sequence[Step]) -> bool:
        """Whether any of these steps was neither ended nor superseded."""
        return any(map(self._scheduler.is_current, steps))

    def _queue_early(self, steps: tuple[Step, ...], output: LayerVerdicts) -> None:
        """Queue an exit's verdicts, each with the measured rate at which this exit was right when so confident."""
        now, rates = self._clock(), self._model.reliability.get(output.layer)
        for step in steps:
            verdict = output.verdicts.get(step.index)
            if verdict is not None and self._scheduler.is_current(step):
                confidence = verdict.confidence if rates is None else rates.rate(verdict.confidence)
                early = step.early(output.layer, verdict, confidence)
                if early is not None:
                    self._exits.push(step.index, early, now)

    def _commit(self, step: Step, output: LayerVerdicts, now: float, compute_s: float) -> None:
        """Send what the last layer's verdict commits. Raises what its row has failed with."""
        if step.index in output.failures:
            raise output.failures[step.index]
        verdict = output.verdicts[step.index]
        commit = step.accept(verdict, now, compute_s)
        self._totals.count(step.act, len(commit.tokens))
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None:
            self._send(session, commit)
            if commit.done:
                self._log_step(session, step, "done")
        if not commit.done:
            self._engine.keep(step.index, verdict.path, verdict.token)

    def _give_up(self, step: Step, code: wire.FaultCode, text: str) -> None:
        """End a step, unless another took its place, with a fault to its edge."""
        if not self._scheduler.is_current(step):
            return
        self._scheduler.end(step.index)
        self._exits.overtake(step.index)
        session = self._sessions.of_index(step.index)
        if session is not None and session.peer is not None:
            self._refuse(session.peer, wire.Fault(code, text, step.number))

    def _note_overrun(self, what: str, seconds: float, declared: float) -> None:
        if declared and seconds > declared:
            if not self._overruns:
                text = "%s took %.1f ms, profile %s declares %.1f ms: times are not the profile's (logged once)"
                _log.warning(text, what, seconds * 1e3, self._profile.name, declared * 1e3)
            self._overruns += 1

    # --- peers and records

    def _send(self, session: Session, message: wire.AnyMessage, droppable: bool = False) -> None:
        if session.peer is None:
            return
        if self._mailbox.send(session.peer, message, droppable):
            session.last_seen = self._clock()
        else:
            _log.info("session %d lost its edge", session.number)
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
            self._sessions.detach(session)
            if (step := self._scheduler.step(session.index)) is not None:
                step.suspend()
            self._exits.overtake(session.index)

    def _refuse(self, peer: bytes, fault: wire.Fault) -> None:
        self._faults += 1
        self._allowance.take(peer, self._clock())
        session = self._sessions.of_peer(peer)
        fault = wire.Fault(fault.code, printable(fault.message, wire.MAX_TEXT_CHARS - 50), fault.step)
        who = f"session {session.number}" if session else "a peer without session"
        # Peers without a session share one allowance of log lines: each may come back as another peer.
        if session is not None or self._allowance.take(b"", self._clock()):
            _log.warning("refused %s: %s: %s", who, fault.code.name, fault.message)
        if session is None:
            self._mailbox.send(peer, fault, droppable=True)
        else:
            self._send(session, fault)

    def _close(self, session: Session, why: str, same_robot: bool = False) -> None:
        """End a session. same_robot: the next one on its row is its own, and what it has used still counts."""
        self._log_step(session, self._scheduler.end(session.index), why)
        self._exits.close(session.index)
        self._scheduler.forget(session.index)
        if not same_robot:
            self._memory.forget(session.index)
        if session.peer is not None:
            self._mailbox.forget(session.peer)
            self._mailbox.admit(session.peer, False)
        self._sessions.close(session)
        _log.info("session %d closed: %s", session.number, why)

    def _drop_dead_sessions(self) -> None:
        """Free a row: close a session whose edge cannot be pinged or was silent for long."""
        for session in self._sessions.all:
            if session.peer is not None:
                self._send(session, wire.Ping(0), droppable=True)
            silent = self._clock() - session.last_received > SILENT_S
            if session.peer is None or (silent and not self._mailbox.waits(session.peer)):
                self._close(session, "its edge is gone and the place is needed")
                return

    def _log_step(self, session: Session, step: Step | None, how: str) -> None:
        if step is None or step.logged:
            return
        step.logged = True
        self._steps += 1
        now, tally = self._clock(), step.tally
        total_ms = (now - step.begun_at) * 1e3
        _log.info("session %d step %d %s: %s total=%.1fms", session.number, step.number, how, tally, total_ms)
        self._totals.waited_s += tally.waited_s
        self._totals.prefill_s += tally.prefill_s
        self._record("step", step.begun_at, now, session=session.number, step=step.number, tokens=tally.tokens)

    def _record(self, name: str, start: float, end: float, **args: int) -> None:
        if self._trace is not None:
            self._trace.add(name, Lane.CLOUD, start, end, **args)


def _rows(steps: tuple[Step, ...]) -> list[Row]:
    return [step.row for step in steps if step.row is not None]


def _chunk_rows(batch: Batch) -> list[Row]:
    return [Row(step.index, cached=step.cached, chunk=tokens) for step, tokens in batch.chunks.items()]
