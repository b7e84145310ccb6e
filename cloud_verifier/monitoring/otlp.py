"""Traces of the verifier's steps for an OpenTelemetry collector, in a thread of their own; see `speculation.otlp`."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from opentelemetry.sdk.trace.export import SpanExporter

from cloud_verifier.monitoring.figures import Journey
from speculation.otlp import Part, StepExporter

_log = logging.getLogger("cloud_verifier")
MOST_WAITING = 256
"""Steps that wait to be exported; more are dropped, and counted."""
END_S = 5.0


class StepTraces:
    """Exports ended steps; `put` never waits. `clock` is the server's, seconds; `wall` seconds since 1970."""

    def __init__(
        self, exporter: SpanExporter, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall = clock, wall
        self._exporter = StepExporter("spec-vlm-nav-verifier", exporter)
        self._waiting: queue.Queue[tuple[Journey, str, float] | None] = queue.Queue(MOST_WAITING)
        self.dropped = 0
        """Steps that found the queue full."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, journey: Journey, how: str, now: float) -> None:
        """See `StepSink`."""
        try:
            self._waiting.put_nowait((journey, how, now))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Export what waits, as far as the collector takes it within a few seconds."""
        try:
            self._waiting.put(None, timeout=END_S)
        except queue.Full:
            return
        self._thread.join(END_S)
        self._exporter.close(END_S)

    def _run(self) -> None:
        while (each := self._waiting.get()) is not None:
            try:
                self._export(*each)
            except Exception:
                _log.exception("a step's trace could not be made")

    def _export(self, journey: Journey, how: str, ended: float) -> None:
        offset = self._wall() - self._clock()
        spans = [(act, start, end, tokens) for act, start, end, tokens in journey.passes]
        parts = [Part(act, start + offset, end + offset, {"tokens": tokens}) for act, start, end, tokens in spans]
        if journey.prefilled is not None and journey.granted is not None:
            parts.insert(0, Part("prefill", journey.granted + offset, journey.prefilled + offset, {}))
        if journey.granted is not None:
            parts.insert(0, Part("queue", journey.begun + offset, journey.granted + offset, {}))
        step = Part("step", journey.begun + offset, ended + offset, {
            "session": journey.session, "robot": journey.robot, "step": journey.step.number,
            "class": journey.service_class, "end": how,
        })  # fmt: skip
        self._exporter.answered(journey.trace, step, parts)
