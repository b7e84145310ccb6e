"""Traces of steps for an OpenTelemetry collector, by the OpenTelemetry SDK.

A step's trace has the id that its robot gave it (`BeginStep.trace`), so that what the robot exports under the same id
joins it; a step without one gets an id of its own. Spans carry wall-clock times of this machine: how well they lie
beside the robot's is how well both clocks are set.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.util.types import AttributeValue

from cloud_verifier.monitoring.figures import TRACE_BYTES, Journey

_log = logging.getLogger("cloud_verifier")
MOST_WAITING = 256
"""Steps that wait to be exported; more are dropped, and counted."""


def http_exporter(address: str) -> SpanExporter:
    """Return an exporter to the OTLP collector at `address`, http://HOST:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=address)
    return exporter


class StepTraces:
    """Exports ended steps in threads of its own; `put` never waits.

    `clock` is the server's, seconds; `wall` seconds since 1970.
    """

    def __init__(
        self, exporter: SpanExporter, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall = clock, wall
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "spec-vlm-nav-verifier"}), id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cloud_verifier")
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
        self._waiting.put(None)
        self._thread.join(5.0)
        self._provider.shutdown()

    def _run(self) -> None:
        while (each := self._waiting.get()) is not None:
            try:
                self._export(*each)
            except Exception:
                _log.exception("a step's trace could not be made")

    def _export(self, journey: Journey, how: str, ended: float) -> None:
        offset = self._wall() - self._clock()

        def at(seconds: float) -> int:
            return int((seconds + offset) * 1e9)

        trace = journey.trace if len(journey.trace) == TRACE_BYTES and any(journey.trace) else secrets.token_bytes(16)
        self._ids.next_trace = int.from_bytes(trace, "big")
        parent = None
        if trace == journey.trace:
            context = SpanContext(self._ids.next_trace, root_span(trace), True, TraceFlags(TraceFlags.SAMPLED))
            parent = set_span_in_context(NonRecordingSpan(context))
        names: dict[str, AttributeValue] = {
            "session": journey.session, "robot": journey.robot, "step": journey.step.number,
            "class": journey.service_class, "end": how,
        }  # fmt: skip
        step = self._tracer.start_span("step", parent, SpanKind.SERVER, names, start_time=at(journey.begun))
        inside = set_span_in_context(step)
        parts: list[tuple[str, float, float, dict[str, AttributeValue]]] = []
        if journey.granted is not None:
            parts.append(("queue", journey.begun, journey.granted, {}))
            if journey.prefilled is not None:
                parts.append(("prefill", journey.granted, journey.prefilled, {}))
        parts += [(act, start, end, {"tokens": tokens}) for act, start, end, tokens in journey.passes]
        for name, start, end, about in parts:
            self._tracer.start_span(name, inside, attributes=about, start_time=at(start)).end(at(end))
        step.end(at(ended))


def root_span(trace: bytes) -> int:
    """Return the id of the robot's own span of a trace: its first eight bytes, so that it need not be sent."""
    return int.from_bytes(trace[:8], "big") or 1


class _Ids(IdGenerator):
    """Random span ids, and the trace id that the step's robot chose for spans without a parent."""

    next_trace = 0

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return self.next_trace
