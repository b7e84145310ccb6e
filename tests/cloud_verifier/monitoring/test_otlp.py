"""Steps as OpenTelemetry traces: the robot's id, spans where the time went, and nothing waits for a collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cloud_verifier.machine import Machine
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.monitoring.otlp import StepTraces
from cloud_verifier.monitoring.series import SPANS_DROPPED
from cloud_verifier.server import Server
from speculation import otlp
from speculation.otlp import http_exporter, root_span
from speculation.profiles import DeviceProfile
from speculation.wire import Idle
from tests.cloud_verifier.bench import CONFIG, Bench, begin

TRACE = bytes(range(1, 17))
EPOCH = 1_700_000_000.0


def answered(traces: StepTraces, bench: Bench, trace: bytes) -> None:
    """Let a verifier that takes 0.25 s a pass answer a step with two tokens."""
    figures = Figures(bench.post.clock, traces)
    profile = DeviceProfile("slow", verify_s=0.25)
    bench.server = Server(Machine(bench.engine, profile=profile), CONFIG, bench.post, bench.post.clock, figures)
    bench.welcome(b"a")
    bench.ask(b"a", begin(max_tokens=2, idle=Idle.DECODE, trace=trace))


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def traces(exporter: InMemorySpanExporter, bench: Bench) -> Iterator[StepTraces]:
    traces = StepTraces(exporter, bench.post.clock, lambda: EPOCH + bench.post.now)
    yield traces
    traces.close()


def test_a_step_is_a_span_under_its_robots_with_its_parts_at_their_times(
    traces: StepTraces, exporter: InMemorySpanExporter, bench: Bench
) -> None:
    answered(traces, bench, TRACE)
    traces.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans.keys() == {"step", "queue", "prefill", "decode"}
    contexts = [span.context for span in spans.values()]
    assert {context.trace_id for context in contexts if context} == {int.from_bytes(TRACE, "big")}
    step = spans["step"]
    assert step.parent is not None and step.parent.span_id == root_span(TRACE) == int.from_bytes(TRACE[:8], "big")
    assert step.attributes is not None and (step.attributes["end"], step.attributes["class"]) == ("done", "interactive")
    passes = [span for span in exporter.get_finished_spans() if span.name == "decode"]
    assert [lasted(span) for span in (step, *passes)] == pytest.approx([0.5, 0.25, 0.25], abs=1e-3)
    assert step.start_time is not None and abs(step.start_time / 1e9 - EPOCH) < 10.0
    assert step.context and all(part.parent and part.parent.span_id == step.context.span_id for part in passes)


def lasted(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_what_finds_the_queue_full_is_dropped_and_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_WAITING", 4)
    begun, go_on = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            begun.set()
            go_on.wait(60)
            return super().export(spans)

    traces = StepTraces(Hanging(), bench.post.clock)
    answered(traces, bench, TRACE)
    assert begun.wait(60)
    figures = bench.server.figures
    for step in range(2, 9):
        bench.ask(b"a", begin(step, max_tokens=1, idle=Idle.DECODE))
    assert traces.dropped == 7 - 4
    figures.publish(bench.post.now, ())
    assert figures.value(SPANS_DROPPED) == 3
    go_on.set()
    traces.close()


def test_the_http_exporter_speaks_to_a_collector(bench: Bench) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        traces = StepTraces(http_exporter(f"http://127.0.0.1:{server.server_port}/v1/traces"), bench.post.clock)
        answered(traces, bench, TRACE)
        traces.close()
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path, _ in got] == ["/v1/traces"] and TRACE in got[0][1] and b"spec-vlm-nav-verifier" in got[0][1]
    assert b"prefill" in got[0][1]
