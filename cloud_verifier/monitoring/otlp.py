"""Sends traces of the verifier's steps to an OpenTelemetry collector, in a thread of their own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from opentelemetry.sdk.trace.export import SpanExporter

from cloud_verifier.monitoring.figures import StepRecord
from speculation.otlp import Part, StepExporter

_log = logging.getLogger("cloud_verifier")
MOST_WAITING = 256
"""So many steps may wait to be exported; more are dropped, and counted."""
MOST_TOGETHER = 32
"""So many steps are sent together, where so many wait."""
END_S = 5.0


class StepTraces:
    """Exports ended steps; `put` never waits. `clock` is the server's, seconds; `wall` seconds since 1970."""

    def __init__(
        self, exporter: SpanExporter, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall = clock, wall
        self._exporter = StepExporter("spec-vlm-nav-verifier", exporter)
        self._waiting: queue.Queue[tuple[StepRecord, str, float] | None] = queue.Queue(MOST_WAITING)
        self._crowded_out = self._not_taken = 0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Return how many steps found the queue full, or were not taken by the collector."""
        return self._crowded_out + self._not_taken

    def put(self, record: StepRecord, how: str, now: float) -> None:
        """Take a step that ended `how`; never wait."""
        try:
            self._waiting.put_nowait((record, how, now))
        except queue.Full:
            self._crowded_out += 1

    def close(self) -> None:
        """Export what waits, as far as the collector takes it within a few seconds."""
        try:
            self._waiting.put(None, timeout=END_S)
        except queue.Full:
            return
        self._thread.join(END_S)
        self._exporter.close(END_S)

    def _run(self) -> None:
        together = 0
        while (each := self._waiting.get()) is not None:
            try:
                self._export(*each)
            except Exception:
                _log.exception("a step's trace could not be made")
            together += 1
            if together == MOST_TOGETHER or self._waiting.empty():
                self._flush(together)
                together = 0
        self._flush(together)

    def _flush(self, steps: int) -> None:
        if not self._exporter.flush():
            self._not_taken += steps

    def _export(self, record: StepRecord, how: str, ended: float) -> None:
        offset = self._wall() - self._clock()
        parts = [
            Part(act, start + offset, end + offset, {"tokens": tokens}) for act, start, end, tokens in record.passes
        ]
        if record.prefilled is not None and record.granted is not None:
            parts.insert(0, Part("prefill", record.granted + offset, record.prefilled + offset, {}))
        if record.granted is not None:
            parts.insert(0, Part("queue", record.begun + offset, record.granted + offset, {}))
        step = Part("step", record.begun + offset, ended + offset, {
            "session": record.session, "robot": record.robot, "step": record.step.number,
            "class": record.service_class, "end": how,
        })  # fmt: skip
        self._exporter.answered(record.step.request.trace, step, parts)
