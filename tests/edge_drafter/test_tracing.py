"""What a step leaves in its trace, on a link and a clock that a test sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.tracing import StepTrace
from speculation.trace import Lane, Trace
from speculation.wire import Commit

SECONDS = st.floats(0.0, 2.0)


@settings(max_examples=40)
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
