"""What a step leaves in its trace, on a link and a clock that a test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, StepResult
from edge_drafter.tracing import StepTrace
from speculation.trace import Kind, Lane, Span, Trace
from speculation.wire import Commit, Draft
from tests.edge_drafter.fakes import Bench, Weather, hashed_draft, hashed_target, request

SECONDS = st.floats(0.0, 2.0)


def traced(mode: str, seed: int = 3, agreement: float = 0.7) -> tuple[Bench, StepResult]:
    target = hashed_target(seed, eos_rate=0.0)
    weather = Weather(exits=3, wrong_exits=0.3)
    bench = Bench(target, hashed_draft(target, seed, agreement), weather, DraftingConfig.of(mode))
    return bench, bench.run(request(step=11, max_tokens=40))


def named(spans: list[Span], kind: Kind) -> list[Span]:
    return [span for span in spans if span.name == kind.value]


def test_a_step_can_be_cut_out_by_its_number_and_its_rounds_told_apart() -> None:
    bench, first = traced("fsd")
    bench.run(request(step=12, max_tokens=10))
    spans = [span for span in bench.trace.spans if span.args["step"] == 11]
    (step,) = named(spans, Kind.STEP)
    assert step.args["tokens"] == first.stats.tokens
    used = first.stats.draft_forwards - first.stats.wasted_forwards
    assert step.args["useful_forwards"] == used > 0
    assert step.end - step.start == pytest.approx(first.stats.total_s)
    assert all(step.start <= span.start and span.end <= step.end for span in spans)
    rounds = [span.args["round"] for span in named(spans, Kind.ROUND)]
    assert rounds == [message.round for _, message in bench.link.sent if isinstance(message, Draft)][: len(rounds)]
    assert len(named(spans, Kind.DRAFT) + named(spans, Kind.PREDRAFT)) == first.stats.draft_forwards
    for draft in named(spans, Kind.PREDRAFT):
        # A forward in flight may outlast the commit that it was to hide, never begin after it.
        (around,) = (span for span in named(spans, Kind.ROUND) if span.args["round"] == draft.args["round"])
        assert around.start <= draft.start <= around.end
    for draft in named(spans, Kind.DRAFT):
        (its_round,) = (span for span in named(spans, Kind.ROUND) if span.args["round"] == draft.args["round"])
        assert draft.end <= its_round.start


@given(up=SECONDS, wait=SECONDS, prefill=SECONDS, queue=SECONDS, verify=SECONDS)
def test_the_verifiers_work_lies_between_question_and_answer(
    up: float, wait: float, prefill: float, queue: float, verify: float
) -> None:
    """With equal ways the first commit's work is placed where it was, or not earlier than it can have been."""
    sent = wait
    began = max(sent + up, up + prefill)
    received = began + queue + verify + up
    trace = Trace(lambda: 0.0)
    commit = Commit(1, 1, 0, [1], b"12345678", False, 1, queue, verify, prefill)
    StepTrace(trace, 1, 0.0).round(commit, 1, sent, received)
    places = {span.name: span for span in trace.spans if span.lane is Lane.CLOUD}
    slack = 1e-9
    for span in places.values():
        assert -slack <= span.start and span.end <= received + slack
    if verify > 0.0:
        assert places["verify"].start >= sent - slack
        if prefill > 0.0:
            assert places["prefill"].end <= places["verify"].start + slack
        if up + prefill <= sent + up:  # the draft did not wait for the prefill, so both ways are known
            assert places["verify"].end == pytest.approx(received - up)
