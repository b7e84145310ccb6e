"""Steps as OpenTelemetry traces, robot's and verifier's under one id, by the OpenTelemetry SDK (extra `otlp`).

The robot names a question's trace (`BeginStep.trace`). The id of the robot's own span, the trace's root, is the first
eight bytes of it, so it need not be sent for the verifier's spans to stand under it. Times are the wall clock of the
machine that exports: how well both sides' spans lie beside each other is how well their clocks are set.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.util.types import AttributeValue

from speculation.wire import TRACE_BYTES

_log = logging.getLogger(__name__)
NS = 1e9
MOST_SPANS = 512
"""Spans in one message to the collector."""


def http_exporter(address: str) -> SpanExporter:
    """Return an exporter to the OTLP collector at `address`, http://HOST:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=address)
    return exporter


class Part(NamedTuple):
    """A span: its name, start and end in seconds since 1970, and its attributes."""

    name: str
    start: float
    end: float
    attributes: dict[str, AttributeValue]


class StepExporter:
    """Exports steps as `service`. One thread at a time may call it, one that may wait: `flush` is what sends.

    The SDK's own batches are not used: their queue drops spans that it does not count, and a line a span is logged.
    """

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        self._ids, self._ended, self._exporter = _Ids(), _Ended(), exporter
        resource = Resource.create({"service.name": service})
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("spec_vlm_nav")
        self._begun = b""

    def asked(self, trace: bytes, step: Part, parts: Sequence[Part]) -> None:
        """Export a robot's step. The first of a trace is its root, those that take it up again stand under that one."""
        if trace == self._begun or not is_trace(trace):
            self._export(trace, step, parts, SpanKind.CLIENT)
            return
        self._begun = trace
        self._ids.trace, self._ids.span = int.from_bytes(trace, "big"), root_span(trace)
        self._export(b"", step, parts, SpanKind.CLIENT)

    def answered(self, trace: bytes, step: Part, parts: Sequence[Part]) -> None:
        """Export a verifier's step, under the robot's; one without a trace is a trace of its own."""
        self._export(trace, step, parts, SpanKind.SERVER)

    def _export(self, trace: bytes, step: Part, parts: Sequence[Part], kind: SpanKind) -> None:
        parent = None
        if is_trace(trace):
            sampled = TraceFlags(TraceFlags.SAMPLED)
            context = SpanContext(int.from_bytes(trace, "big"), root_span(trace), True, sampled)
            parent = set_span_in_context(NonRecordingSpan(context))
        span = self._tracer.start_span(step.name, parent, kind, step.attributes, start_time=int(step.start * NS))
        inside = set_span_in_context(span)
        for part in parts:
            below = self._tracer.start_span(
                part.name, inside, attributes=part.attributes, start_time=int(part.start * NS)
            )
            below.end(int(part.end * NS))
        span.end(int(step.end * NS))

    @property
    def waiting(self) -> int:
        """Spans that `flush` would send."""
        return len(self._ended.spans)

    def flush(self) -> bool:
        """Send what waits, MOST_SPANS at once; return whether the collector took it. What it did not take is gone."""
        spans, self._ended.spans = self._ended.spans, []
        try:
            return all(
                self._exporter.export(spans[first : first + MOST_SPANS]) is SpanExportResult.SUCCESS
                for first in range(0, len(spans), MOST_SPANS)
            )
        except Exception:
            _log.exception("traces could not be sent")
            return False

    def close(self, within_s: float) -> None:
        """Send what waits, as far as the collector takes it in so many seconds."""
        ending = threading.Thread(target=self._end, name="otlp end", daemon=True)
        ending.start()
        ending.join(within_s)

    def _end(self) -> None:
        self.flush()
        self._exporter.shutdown()


def is_trace(trace: bytes) -> bool:
    """Whether these bytes are a trace id: as many as W3C's Trace Context has, and not all of them 0."""
    return len(trace) == TRACE_BYTES and any(trace)


def root_span(trace: bytes) -> int:
    """Return the id of the robot's own span of a trace; no span's id is 0."""
    return int.from_bytes(trace[:8], "big") or 1


class _Ended(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Ids(IdGenerator):
    """Random ids, but for the next trace and span where they are given."""

    trace = span = 0

    def generate_span_id(self) -> int:
        given, self.span = self.span, 0
        return given or secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        given, self.trace = self.trace, 0
        return given or secrets.randbits(128) or 1
