"""Runs what the scheduler has started, on the target and on the draft model beside it, and sends the outcome.

One step's failure is its own; what fails a forward fails the steps in it, and never the server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cloud_verifier.declared_times import DeclaredTimes
from cloud_verifier.events import Committed, Events, ExitJudged, Granted, Prefilled, Worked
from cloud_verifier.interfaces import CapacityError, LayerVerdicts, Row, RowFeatures
from cloud_verifier.kv_admission import KvAdmission
from cloud_verifier.machine import Machine
from cloud_verifier.outbox import Outbox
from cloud_verifier.policies import Batch
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.server_draft.prefill import DraftPrefills
from cloud_verifier.step import Step
from cloud_verifier.tree import NOTHING, Tree
from speculation import wire
from speculation.cancellation import Abandoned, Stop
from speculation.pass_cost import Load

_log = logging.getLogger("cloud_verifier")


class Executor:
    """Runs images, forwards and drafts one after another, in the server's thread.

    Between their layers `attend` reads messages and sends early tokens; `clock` gives seconds.
    """

    def __init__(
        self,
        machine: Machine,
        times: DeclaredTimes,
        scheduler: Scheduler,
        memory: KvAdmission,
        outbox: Outbox,
        events: Events,
        attend: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._draft_engine, self._times = machine.engine, machine.draft_engine, times
        self._model = machine.engine.model
        self._scheduler, self._memory, self._outbox, self._emit = scheduler, memory, outbox, events.emit
        self._attend, self._clock = attend, clock
        self._readings: DraftPrefills | None = None
        if machine.draft_engine is not None and scheduler.costs.drafts is not None:
            self._readings = DraftPrefills(machine.draft_engine, scheduler.costs.drafts, self._reads_for, clock)
        self._under_way: tuple[Step, ...] = ()
        """Steps of the forward that runs now."""

    @property
    def is_abandoned(self) -> bool:
        """Whether a forward runs of whose steps none is wanted any more."""
        return bool(self._under_way) and not self.is_wanted(self._under_way)

    def begin(self, step: Step, inputs: tuple[Any, Any] | None, seconds: float) -> None:
        """Let a step that has its memory be prefilled; its frames and prompt took so long to prepare."""
        assert inputs is not None, "only what was prepared gets memory"
        own, beside = inputs
        answer, prefill = step.answer, step.prefill
        with self._prefilling(step):
            size, image_tokens = self._engine.size(own), self._engine.image_tokens(own)
            tokens = self._engine.begin(step.index, own, answer.tokens, answer.max_tokens, step.features.prompt_tokens)
            now = self._clock()
            self._emit(Granted(step, size - 1 + answer.position, tokens, now))
            prefill.prepared(own, tokens, size, image_tokens, beside)
            prefill.encode_s = self._scheduler.costs.images.seconds(Load.row(image_tokens))
            step.usage.prefill_s = seconds
            if prefill.encoded and not tokens:  # words that its row shares with others to the last
                self._prefilled(step, 0, now)

    def encode(self, step: Step) -> None:
        """Encode a step's image."""
        started = self._clock()
        with self._prefilling(step):
            try:
                self._engine.encode(step.index, self._unwanted(step))
            finally:
                ended = self._clock()
                self._memory.prefilled(step.index, ended - started, ended)
            self._emit(Worked("encode", started, ended, about={"step": step.number}))
            self._scheduler.costs.images.observe(Load.row(step.prefill.image_tokens), ended - started)
            step.prefill.encoded = True
            self._prefilled(step, 0, started)

    def run(self, batch: Batch) -> None:
        """Run one target forward, drafts for it first; exits leave as their layers are done, commits at the end.

        It ends after a layer when none of its steps is wanted any more.
        """
        self._under_way = tuple(dict.fromkeys((*batch.choices, *batch.chunks)))
        try:
            self._run(batch)
        finally:
            self._under_way = ()

    def _run(self, batch: Batch) -> None:
        began, steps, everyone = self._clock(), tuple(batch.choices), self._under_way
        output = LayerVerdicts(-1, {})
        try:
            self._draft_here(steps)
            if self.is_abandoned:
                return
            started, rows = self._clock(), [*_rows(steps), *_chunk_rows(batch)]
            is_prefill = all(row.chunk for row in rows)
            for output in self._times.verify(self._engine, rows):
                self._attend()
                if self.is_abandoned:
                    self._emit(Worked("prefill" if is_prefill else "verify", started, self._clock()))
                    return
                if output.layer < self._model.num_layers - 1:
                    self._queue_early(steps, output)
                    self._outbox.send_early()
        except Exception as error:
            _log.exception("a forward failed")
            for step in everyone:
                self._outbox.give_up(step, wire.FaultCode.INTERNAL, f"the verifier's forward failed: {error}")
            return
        now = self._clock()
        load = Load.total(row.load for row in rows)
        if is_prefill:  # prompts alone say little of the small forwards that are predicted
            self._emit(Worked("prefill", started, now, load.new))
        else:
            self._scheduler.costs.passes.observe(load, now - started)
            about = {"sessions": len(steps), "drafted": sum(len(row.tokens) for row in rows)}
            self._emit(Worked("verify", started, now, load.new, about))
        for step in (step for step in steps if step not in batch.chunks):
            self._commit(step, output, now, now - began)
        fed = {row.index: row.load.new for row in rows}
        for step, tokens in batch.chunks.items():
            self._memory.prefilled(step.index, (now - started) * fed[step.index] / load.new, now)
            if step in batch.choices:
                self._prefilled(step, tokens, started, output=output)
            else:
                self._prefilled(step, tokens, started, output.features.get(step.index))

    def _prefilled(
        self,
        step: Step,
        tokens: int,
        started: float,
        features: RowFeatures | None = None,
        output: LayerVerdicts | None = None,
    ) -> None:
        """Note what was fed of a prefill, and commit what the same forward has judged behind its end, its `output`.

        At its end the draft model beside the target begins to read the prompt.
        """
        if not self._scheduler.is_current(step):
            return
        ends = step.prefill.left == tokens
        now = self._clock()
        step.prefilled(tokens, now, now - started, features)
        self._emit(Prefilled(step, tokens, started, now))
        if output is not None:
            self._commit(step, output, now, 0.0)
        elif ends:
            self._outbox.send_features(step, step.answer.position)
        drafting = self._scheduler.costs.drafts
        if not ends or drafting is None or not self._scheduler.is_current(step):
            return
        # A ledger's first step shows what it takes; later ones are prefilled when their ledger so chooses.
        if step.request.self_draft or drafting.prefill_s is None:
            with self._prefilling(step):
                self._prefill_draft(step, self._unwanted(step))

    @contextmanager
    def _prefilling(self, step: Step) -> Iterator[None]:
        """End a step over which what is inside fails, but not where it stops because nobody wants the step any more."""
        try:
            yield
        except Abandoned:
            pass
        except Exception as error:
            self.cannot_prefill(step, error)

    def cannot_prefill(self, step: Step, error: Exception) -> None:
        """End a step whose prompt or frame cannot be read, or does not fit."""
        if isinstance(error, CapacityError):
            self._outbox.give_up(step, wire.FaultCode.TOO_LARGE, str(error))
        elif isinstance(error, ValueError):
            self._outbox.give_up(step, wire.FaultCode.BAD_IMAGE, str(error))
        else:
            _log.error("prefill failed", exc_info=error)
            self._outbox.give_up(step, wire.FaultCode.INTERNAL, f"the verifier's prefill failed: {error}")

    def is_wanted(self, steps: Sequence[Step]) -> bool:
        """Whether any of these steps was neither ended nor superseded."""
        return any(map(self._scheduler.is_current, steps))

    def _unwanted(self, *steps: Step) -> Stop:
        """Return what reads messages and is true once all of these steps were ended or superseded."""

        def stop() -> bool:
            self._attend()
            return not self.is_wanted(steps)

        return stop

    def _queue_early(self, steps: tuple[Step, ...], output: LayerVerdicts) -> None:
        """Queue an exit's verdicts, each with the measured rate at which this exit was right when so confident."""
        rates = self._model.reliability.get(output.layer)
        for step in steps:
            verdict = output.verdicts.get(step.index)
            if verdict is not None and self._scheduler.is_current(step):
                confidence = verdict.confidence if rates is None else rates.rate(verdict.confidence)
                early = step.early(output.layer, verdict, confidence)
                if early is not None:
                    self._emit(ExitJudged(step, output.layer, verdict))
                    self._outbox.queue_early(step, early)

    def _commit(self, step: Step, output: LayerVerdicts, now: float, compute_s: float) -> None:
        """Send what the last layer's verdict commits, if the step is still wanted; one whose row has failed ends."""
        if not self._scheduler.is_current(step):
            return
        try:
            if step.index in output.failures:
                raise output.failures[step.index]
            verdict, since = output.verdicts[step.index], step.committed_at
            ends_prefill = step.row is not None and step.row.chunk > 0
            commit = step.accept(verdict, now, compute_s, output.features.get(step.index))
            self._emit(Committed(step, verdict, commit, since, now))
            if ends_prefill:
                self._outbox.send_features(step, commit.start)
            self._outbox.send_commit(step, commit)
            if not commit.done:
                self._engine.keep(step.index, verdict.path, verdict.token)
        except Exception as error:
            _log.error("a verdict failed", exc_info=error)
            self._outbox.give_up(step, wire.FaultCode.INTERNAL, f"the verifier could not judge this step: {error}")

    def read_on(self) -> bool:
        """Let the draft model read one piece of the oldest prompt: its image, or a chunk that is predicted to take no
        longer than a forward in which all decode. Returns whether there was one."""
        step = None if self._readings is None else self._readings.next()
        if step is None:
            return False
        alone = not self._scheduler.active(step.index)
        with self._prefilling(step):
            self._read(step, self._unwanted(step), math.inf if alone else self._scheduler.decoding_s)
        return True

    def _reads_for(self, step: Step) -> bool:
        """Whether a prompt is still wanted: the row of a step that is done is free, though its commits are kept."""
        return self._scheduler.is_current(step) and not step.done

    def _prefill_draft(self, step: Step, stop: Stop) -> None:
        """Let the draft model beside the target read a step's prompt, where it has not begun to. Raises as `_read`.

        At once where nobody else is being answered; else it goes on between forwards, see `read_on`. Where the model
        has no room for a step that needs no draft of it, nothing is raised: it gets none.
        """
        assert self._readings is not None and self._scheduler.costs.drafts is not None, "no model drafts here"
        if step.prefill.draft_inputs is None:
            return
        at_once = not self._scheduler.active(step.index)
        # A draft that is made at once is charged with its prefill.
        charged = step.request.idle is wire.Idle.LEDGER and not step.pending and not at_once
        try:
            self._readings.begin(step, self._scheduler.costs.drafts.prefill_s if charged else None)
        except CapacityError:
            step.prefill.draft_ready(done=False)
            if step.request.self_draft:
                raise
        while at_once and self._readings.under_way(step):
            self._read(step, stop)

    def _read(self, step: Step, stop: Stop, limit_s: float = math.inf) -> None:
        """Let the draft model read on. Raises as `DraftPrefills.read`."""
        assert self._readings is not None, "no model drafts here"
        started = self._clock()
        try:
            self._readings.read(step, limit_s, stop)
        finally:
            now = self._clock()
            self._emit(Worked("read", started, now, about={"step": step.number}))
            self._memory.prefilled(step.index, now - started, now)

    def _draft_here(self, steps: Sequence[Step]) -> None:
        """Let the draft model beside the target draft for the steps that request it, all in the same forwards.

        Where it fails, those steps end; the others of the batch go on.
        """
        asking = [step for step in steps if step.row is not None and step.row.self_draft]
        began, stop = self._clock(), self._unwanted(*steps)
        try:
            for step in asking:
                self._prefill_draft(step, stop)
                if not step.prefill.drafts_here:
                    step.draft_here(NOTHING)
            if rows := _rows([step for step in asking if step.prefill.drafts_here]):
                self._make_drafts(rows, steps, began)
        except Abandoned:
            return
        except Exception as error:
            _log.exception("drafting failed")
            for step in asking:
                self._outbox.give_up(step, wire.FaultCode.INTERNAL, f"the verifier's drafting failed: {error}")

    def _make_drafts(self, rows: Sequence[Row], steps: Sequence[Step], began: float) -> None:
        """Draft for rows of these steps, level after level for as long as that pays."""
        assert self._draft_engine is not None and self._scheduler.costs.drafts is not None, "no model drafts here"
        started = last = self._clock()
        drafts: Mapping[int, Tree] = {}
        for turn, so_far in enumerate(self._times.draft(self._draft_engine, rows), start=1):
            drafts = so_far
            self._attend()
            if not self.is_wanted(steps):
                return
            self._scheduler.costs.drafts.forward(turn, self._clock() - last)
            last = self._clock()
            if not self._scheduler.goes_on(drafts, turn + 1, last - began, last):
                break
        drafted = sum(len(each.tokens) for each in drafts.values())
        self._emit(Worked("draft", started, last, about={"sessions": len(rows), "drafted": drafted}))
        for step in steps:
            if step.index in drafts:
                step.draft_here(drafts[step.index], last - began, last)


def _rows(steps: Sequence[Step]) -> list[Row]:
    return [step.row for step in steps if step.row is not None]


def _chunk_rows(batch: Batch) -> list[Row]:
    return [
        Row(step.index, cached=step.cached, chunk=tokens, features=step.prefill.wanted_features(tokens))
        for step, tokens in batch.chunks.items()
        if step not in batch.choices
    ]
