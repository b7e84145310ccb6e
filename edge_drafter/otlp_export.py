"""Traces of a robot's steps for an OpenTelemetry collector; see `speculation.otlp`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.util.types import AttributeValue

from speculation.otlp import MOST_SPANS, Part, StepExporter
from speculation.trace import Kind, Lane, Span

_log = logging.getLogger(__name__)
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
        self._sending: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, spans: Sequence[Span]) -> int:
        """Export those steps among `spans` that have ended and were not exported yet; return how many.

        For any thread: making spans takes some 0.1 ms each and a collector its time, so a thread of its own does both.
        While that of an earlier call is at work none is taken; a later call has them, as long as they are in the trace.
        What the verifier reports of its own work is left out: it exports that by itself.
        """
        with self._lock:
            if self._sending is not None and self._sending.is_alive():
                return 0
            ended = [span for span in spans if span.name == Kind.STEP.value and _number(span) > self._sent]
            if not ended:
                return 0
            self._sent = max(map(_number, ended))
            offset = self._wall() - self._clock()
            self._sending = threading.Thread(
                target=self._export, args=(ended, spans, offset), name="traces", daemon=True
            )
            self._sending.start()
            return len(ended)

    def close(self) -> None:
        """Send what is left, as far as the collector takes it within a few seconds."""
        with self._lock:
            if self._sending is not None:
                self._sending.join(END_S)
            self._exporter.close(END_S)

    def _export(self, ended: Sequence[Span], spans: Sequence[Span], offset: float) -> None:
        parts: dict[int, list[Part]] = {_number(span): [] for span in ended}
        for span in spans:
            if span.name != Kind.STEP.value and span.lane is not Lane.CLOUD and _number(span) in parts:
                parts[_number(span)].append(_part(span, offset))
        for span in ended:
            trace = bytes.fromhex(str(span.args.get("trace", "")))
            self._exporter.asked(trace, _part(span, offset), parts[_number(span)])
            if self._exporter.waiting >= MOST_SPANS and not self._exporter.flush():
                _log.warning("the OTLP collector takes no traces: those of %d steps are lost at most", len(ended))
                return
        self._exporter.flush()


def _number(span: Span) -> int:
    number = span.args.get("step", -1)
    return number if isinstance(number, int) else -1


def _part(span: Span, offset: float) -> Part:
    attributes: dict[str, AttributeValue] = {
        name: value for name, value in span.args.items() if isinstance(value, (bool, int, float, str))
    }
    return Part(span.name, span.start + offset, span.end + offset, attributes)
