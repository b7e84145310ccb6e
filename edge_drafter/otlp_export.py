"""Sends a robot's steps to an OpenTelemetry collector; see `speculation.otlp`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.util.types import AttributeValue

from speculation.otlp import Part, StepExporter
from speculation.trace import Kind, Lane, Span


class ExportedSteps(StepExporter):
    """Exports the steps of a trace, whose clock is `clock`."""

    def __init__(
        self,
        exporter: SpanExporter,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("spec-vlm-nav-robot", exporter, clock, wall, asks=True)
        self._sent = -1
        """Number of the latest step that was exported; numbers grow."""

    def send(self, spans: Sequence[Span]) -> None:
        """Export those steps among `spans` that have ended and were not exported yet.

        What the verifier reports of its own work is left out: it exports that by itself.
        """
        ended = [span for span in spans if span.name == Kind.STEP.value and _number(span) > self._sent]
        parts: dict[int, list[Part]] = {_number(span): [] for span in ended}
        for span in spans:
            if span.name != Kind.STEP.value and span.lane is not Lane.CLOUD and _number(span) in parts:
                parts[_number(span)].append(_part(span))
        for span in ended:
            self._sent = max(self._sent, _number(span))
            self.export(bytes.fromhex(str(span.args.get("trace", ""))), _part(span), parts[_number(span)])


def _number(span: Span) -> int:
    number = span.args.get("step", -1)
    return number if isinstance(number, int) else -1


def _part(span: Span) -> Part:
    attributes: dict[str, AttributeValue] = {
        name: value for name, value in span.args.items() if isinstance(value, (bool, int, float, str))
    }
    return Part(span.name, span.start, span.end, attributes)
