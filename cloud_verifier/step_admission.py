"""Lets steps begin: when their frames are decoded they ask for memory, and those that get it may be prefilled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloud_verifier.config import Limits
from cloud_verifier.executor import Executor
from cloud_verifier.image_decoding import ImageDecoding, Prepared
from cloud_verifier.interfaces import CapacityError
from cloud_verifier.kv_admission import KvAdmission, NoRoom
from cloud_verifier.machine import Machine
from cloud_verifier.outbox import Outbox
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from speculation.vlm.blocks import blocks_for
from speculation.wire import MAX_FRAMES, BeginStep, Idle, frames_of

Inputs = tuple[Any, Any]
"""What target and draft model make of prompt and frames; None for a draft model that is not wanted."""


def preparer(machine: Machine, limits: Limits) -> Callable[[BeginStep], Inputs]:
    """Return what decodes the frames of a question and makes the models' inputs of them, in any thread.

    It raises ValueError for frames that cannot be used.
    """
    sight, engine, draft_engine = machine.engine.model.sight, machine.engine, machine.draft_engine
    most = (limits.frames or sight.frames) if sight is not None else MAX_FRAMES

    def prepare(begin: BeginStep) -> Inputs:
        if (count := len(frames_of(begin.jpeg))) > most:
            raise ValueError(
                f"a question of {count} frames, this verifier's model takes {most}; set frames to that on the robot, "
                "or start the verifier with --frames"
            )
        is_drafted = begin.self_draft or begin.idle is Idle.LEDGER
        inputs = engine.prepare(begin.prompt, begin.jpeg)
        beside = draft_engine.prepare(begin.prompt, begin.jpeg) if draft_engine is not None and is_drafted else None
        return inputs, beside

    return prepare


class StepAdmission:
    """Takes steps from their message to their prefill, and back out of the engine. `clock` gives seconds."""

    def __init__(
        self,
        machine: Machine,
        max_draft: int,
        decoding: ImageDecoding,
        scheduler: Scheduler,
        memory: KvAdmission,
        outbox: Outbox,
        executor: Executor,
        clock: Callable[[], float],
    ) -> None:
        self._machine, self._max_draft, self._decoding = machine, max_draft, decoding
        self._scheduler, self._memory, self._outbox, self._executor = scheduler, memory, outbox, executor
        self._clock = clock
        self._decoded: dict[int, Prepared] = {}
        """Steps that wait for memory, by row."""
        self._rows: dict[int, Step] = {}
        """Steps whose keys and values the rows of the engine hold."""

    def submit(self, step: Step, begin: BeginStep) -> None:
        """Let a step's frames be decoded. Raises NoRoom where it cannot wait for memory now."""
        now, index = self._clock(), step.index
        self._memory.check_prefill(index, now, self._scheduler.active(index))
        self._memory.check(index, now)
        self._decoding.submit(step, begin)

    def turn(self) -> None:
        """Let steps whose frames are decoded ask for memory, and those that get it begin. No pass may be under way."""
        now = self._clock()
        self._free_rows(now)
        for ready in self._decoding.collect():
            step = ready.step
            if not self._scheduler.is_current(step):
                continue
            try:
                if ready.inputs is None:
                    raise ready.error or RuntimeError("a frame came to nothing")
                self._memory.ask(step.index, self._need(step, *ready.inputs), now)
                self._decoded[step.index] = ready
            except NoRoom as full:
                self._outbox.send_busy(step, full)
            except Exception as error:
                self._executor.cannot_prefill(step, error)
        granted, evicted = self._memory.grant(now, self.idle(now) if self._memory.line else ())
        for index in evicted:
            self._release(index)
            self._outbox.send_evicted(index)
        for index in granted:
            ready = self._decoded.pop(index)
            self._rows[index] = ready.step
            self._executor.begin(ready.step, ready.inputs, ready.seconds)

    def idle(self, now: float) -> list[int]:
        """Return the rows whose steps may lose their memory, the first one first."""
        return [row for row in self._scheduler.idle(now, self._outbox.silent_rows()) if row in self._rows]

    def _free_rows(self, now: float) -> None:
        """Take back what is held, or waited for, for steps that are over."""
        for index, step in list(self._rows.items()):
            if step.done or not self._scheduler.is_current(step):
                self._release(index)
                self._memory.release(index, now)
        for index, ready in list(self._decoded.items()):
            if not self._scheduler.is_current(ready.step):
                del self._decoded[index]
                self._memory.release(index, now)

    def _release(self, index: int) -> None:
        del self._rows[index]
        self._machine.engine.release(index)
        if self._machine.draft_engine is not None:
            self._machine.draft_engine.release(index)

    def _need(self, step: Step, own: Any, beside: Any) -> int:
        """Return the blocks that a step may come to hold. Raises CapacityError where there are not so many."""
        prompt = self._machine.engine.size(own)
        if self._machine.draft_engine is not None and beside is not None:
            prompt = max(prompt, self._machine.draft_engine.size(beside))
        answer = step.answer.max_tokens
        need = blocks_for(prompt + answer + self._max_draft)
        if need > self._memory.blocks:
            raise CapacityError(
                f"image and prompt of {prompt} tokens, an answer of {answer} and a draft of {self._max_draft} "
                f"need {need} blocks of memory, there are {self._memory.blocks}; start the verifier with more --memory"
            )
        return need
