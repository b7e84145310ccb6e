"""A robot's steps as OpenTelemetry traces, under one id with what the verifier exports of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from edge_drafter import DraftingConfig
from edge_drafter.otlp_export import ExportedSteps
from speculation.otlp import root_span
from speculation.trace import Kind, Lane, Trace
from speculation.wire import BeginStep
from tests.edge_drafter.fakes import Bench, Weather, hashed_draft, hashed_target, request

TRACE = bytes(range(1, 17))
NUMBER = int.from_bytes(TRACE, "big")
EPOCH = 1_700_000_000.0


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def exported(exporter: InMemorySpanExporter) -> ExportedSteps:
    return ExportedSteps(exporter, lambda: 0.0, lambda: EPOCH)


def spans_of(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_question_carries_its_trace_and_its_spans_come_out_under_it(exporter: InMemorySpanExporter) -> None:
    target = hashed_target(3, eos_rate=0.0)
    bench = Bench(target, hashed_draft(target, 3, 0.7), Weather(), DraftingConfig.of("fsd"))
    bench.run(replace(request(step=11, max_tokens=10), trace=TRACE))
    (begin,) = (message for _, message in bench.link.sent if isinstance(message, BeginStep))
    assert begin.trace == TRACE
    steps = exported(exporter)
    steps.send(bench.trace.spans)
    steps.close()
    (step,) = spans_of(exporter, Kind.STEP.value)
    assert step.context and (step.context.trace_id, step.context.span_id) == (NUMBER, root_span(TRACE))
    assert step.parent is None
    parts = [span for span in exporter.get_finished_spans() if span is not step]
    assert parts and all(part.parent and part.parent.span_id == root_span(TRACE) for part in parts)
    names = {span.name for span in bench.trace.spans if span.lane is not Lane.CLOUD}
    assert {span.name for span in exporter.get_finished_spans()} == names
    (known,) = (span for span in bench.trace.spans if span.name == Kind.STEP.value)
    assert step.start_time is not None and step.start_time / 1e9 - EPOCH == pytest.approx(known.start, abs=1e-3)


def test_a_step_is_exported_once_and_one_that_is_taken_up_again_stands_under_the_first(
    exporter: InMemorySpanExporter,
) -> None:
    trace = Trace(lambda: 0.0)
    steps = exported(exporter)
    trace.add(Kind.STEP.value, Lane.EDGE, 0.0, 1.0, step=1, trace=TRACE.hex())
    trace.add(Kind.DRAFT.value, Lane.EDGE, 1.5, 1.6, step=2)
    steps.send(trace.spans)
    trace.add(Kind.STEP.value, Lane.EDGE, 1.5, 2.0, step=2, trace=TRACE.hex())
    trace.add(Kind.STEP.value, Lane.EDGE, 3.0, 4.0, step=3)
    steps.send(trace.spans)
    steps.close()
    first, again, other = spans_of(exporter, Kind.STEP.value)
    assert first.context and again.context and other.context
    assert again.parent is not None and again.parent.span_id == first.context.span_id == root_span(TRACE)
    assert first.context.trace_id == again.context.trace_id == NUMBER != other.context.trace_id
    (draft,) = spans_of(exporter, Kind.DRAFT.value)
    assert draft.parent is not None and draft.parent.span_id == again.context.span_id
