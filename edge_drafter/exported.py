"""Traces of a robot's steps for an OpenTelemetry collector; see `speculation.otlp`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.util.types import AttributeValue

from speculation.otlp import Part, StepExporter
from speculation.trace import Kind, Lane, Span

END_S = 2.0


class ExportedSteps:
    """Exports the steps of a trace. `clock` is the trace's, seconds; `wall` seconds since 1970."""

    def __init__(
        self,
        exporter: SpanExporter,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._exporter = StepExporter("spec-vlm-nav-robot", exporter)
        self._sent = -1
        """Number of the latest step that was exported; numbers grow."""
        self._lock = threading.Lock()

    def send(self, spans: Sequence[Span]) -> int:
        """Export those steps among `spans` that have ended and were not exported yet; return how many. For any thread.

        What the verifier reports of its own work is left out: it exports that by itself.
        """
        with self._lock:
            ended = [span for span in spans if span.name == Kind.STEP.value and _number(span) > self._sent]
            if not ended:
                return 0
            offset = self._wall() - self._clock()
            parts: dict[int, list[Part]] = {_number(span): [] for span in ended}
            for span in spans:
                if span.name != Kind.STEP.value and span.lane is not Lane.CLOUD and _number(span) in parts:
                    parts[_number(span)].append(_part(span, offset))
            for span in ended:
                trace = bytes.fromhex(str(span.args.get("trace", "")))
                self._exporter.asked(trace, _part(span, offset), parts[_number(span)])
            self._sent = max(map(_number, ended))
            return len(ended)

    def close(self) -> None:
        """Send what is left, as far as the collector takes it within a few seconds."""
        with self._lock:
            self._exporter.close(END_S)


def _number(span: Span) -> int:
    number = span.args.get("step", -1)
    return number if isinstance(number, int) else -1


def _part(span: Span, offset: float) -> Part:
    attributes: dict[str, AttributeValue] = {
        name: value for name, value in span.args.items() if isinstance(value, (bool, int, float, str))
    }
    return Part(span.name, span.start + offset, span.end + offset, attributes)
