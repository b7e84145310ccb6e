"""Sends traces of the verifier's steps to an OpenTelemetry collector; see `speculation.otlp`."""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.sdk.trace.export import SpanExporter

from cloud_verifier.monitoring.figures import StepRecord
from speculation.otlp import Part, StepExporter


class StepTraces(StepExporter):
    """Exports ended steps; `put` never waits. `clock` is the server's, seconds."""

    def __init__(
        self, exporter: SpanExporter, clock: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__("spec-vlm-nav-verifier", exporter, clock, wall)

    def put(self, record: StepRecord, how: str, now: float) -> None:
        """Take a step that ended `how`."""
        parts = [Part(act, start, end, {"tokens": tokens}) for act, start, end, tokens in record.passes]
        if record.granted is not None:
            if record.prefilled is not None:
                parts.insert(0, Part("prefill", record.granted, record.prefilled, {}))
            parts.insert(0, Part("queue", record.begun, record.granted, {}))
        step = Part("step", record.begun, now, {
            "session": record.session, "robot": record.robot, "step": record.step.number,
            "class": record.service_class, "end": how,
        })  # fmt: skip
        self.export(record.step.request.trace, step, parts)
