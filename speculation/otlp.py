"""Exports steps as OpenTelemetry traces, robot's and verifier's under one id, by the SDK (extra `otlp`).

The robot names a question's trace (`BeginStep.trace`). The id of the robot's own span, the trace's root, is the first
eight bytes of it, so it need not be sent for the verifier's spans to stand under it. Times are the wall clock of the
machine that exports: how well both sides' spans lie beside each other is how well their clocks are set.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from speculation.wire import TRACE_BYTES

_log = logging.getLogger(__name__)
MOST_WAITING = 256
"""So many steps may wait to be exported; more are dropped, and counted."""
END_S = 5.0
"""How long `close` waits for the collector."""


def http_exporter(address: str) -> SpanExporter:
    """Return an exporter to the OTLP collector at `address`, http://HOST:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=address)
    return exporter


class Part(NamedTuple):
    """A span: its name, start and end in seconds of the program's clock, and its attributes."""

    name: str
    start: float
    end: float
    attributes: dict[str, AttributeValue]


class _Waiting(NamedTuple):
    """A step that is to be exported; `offset` is the wall clock less the program's."""

    trace: bytes
    step: Part
    parts: Sequence[Part]
    offset: float


class StepExporter:
    """Exports steps as `service` in a thread of its own, one message a step. `clock` is that of `Part`, in seconds.

    The SDK's own batches are not used: their queue drops spans without counting them, and making a span takes some 0.1
    ms, which the thread that serves robots has not.
    """

    def __init__(
        self,
        service: str,
        exporter: SpanExporter,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        asks: bool = False,
    ) -> None:
        """`wall` returns seconds since 1970. `asks`: steps are a robot's, of which the first of a trace is its root."""
        self._asks, self._begun = asks, b""
        self._clock, self._wall, self._exporter = clock, wall, exporter
        self._ids, self._ended = _Ids(), _Ended()
        resource = Resource.create({"service.name": service})
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("spec_vlm_nav")
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(MOST_WAITING)
        self._crowded_out = self._not_taken = 0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Return how many steps found the queue full, or were not taken by the collector."""
        return self._crowded_out + self._not_taken

    def export(self, trace: bytes, step: Part, parts: Sequence[Part]) -> None:
        """Export a step and its parts; never wait. A `trace` that is no id makes the step a trace of its own."""
        try:
            self._waiting.put_nowait(_Waiting(trace, step, parts, self._wall() - self._clock()))
        except queue.Full:
            self._crowded_out += 1

    def close(self) -> None:
        """Export what waits, as far as the collector takes it within `END_S` seconds."""
        try:
            self._waiting.put(None, timeout=END_S)
        except queue.Full:
            return
        self._thread.join(END_S)

    def _run(self) -> None:
        while (each := self._waiting.get()) is not None:
            try:
                self._make_spans(each)
                self._not_taken += self._exporter.export(self._ended.taken()) is not SpanExportResult.SUCCESS
            except Exception:
                self._not_taken += 1
                _log.exception("a step's trace could not be exported")
        self._exporter.shutdown()

    def _make_spans(self, waiting: _Waiting) -> None:
        kind = SpanKind.CLIENT if self._asks else SpanKind.SERVER
        span = self._start(waiting.step, waiting.offset, self._above(waiting.trace), kind)
        inside = set_span_in_context(span)
        for part in waiting.parts:
            self._start(part, waiting.offset, inside, SpanKind.INTERNAL).end(_ns(part.end + waiting.offset))
        span.end(_ns(waiting.step.end + waiting.offset))

    def _start(self, part: Part, offset: float, above: Context | None, kind: SpanKind) -> Span:
        return self._tracer.start_span(part.name, above, kind, part.attributes, start_time=_ns(part.start + offset))

    def _above(self, trace: bytes) -> Context | None:
        """Return the context that a step of a trace stands in, the robot's own span; None for that one itself."""
        if len(trace) != TRACE_BYTES or not any(trace):
            return None
        if self._asks and trace != self._begun:
            self._begun = trace
            self._ids.trace, self._ids.span = int.from_bytes(trace, "big"), root_span(trace)
            return None
        context = SpanContext(int.from_bytes(trace, "big"), root_span(trace), True, TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(context))


def root_span(trace: bytes) -> int:
    """Return the id of the robot's own span of a trace; no span's id is 0."""
    return int.from_bytes(trace[:8], "big") or 1


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class _Ended(SpanProcessor):
    """Keeps the spans that have ended until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def taken(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


class _Ids(IdGenerator):
    """Makes random ids, but for the next trace and span where they are given."""

    trace = span = 0

    def generate_span_id(self) -> int:
        given, self.span = self.span, 0
        return given or secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        given, self.trace = self.trace, 0
        return given or secrets.randbits(128) or 1
