"""When the tokens of an answer came: arrivals in traces."""

from __future__ import annotations

import pytest

from speculation.trace import Kind, Lane, Span
from vlm_nav_evaluation.action_time import arrivals
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import Synthetic, VirtualTime, load_timings


def test_tokens_come_with_their_commit() -> None:
    spans = [
        Span(Kind.DRAFT.value, Lane.EDGE, 10.1, 10.2),
        Span(Kind.COMMIT.value, Lane.EDGE, 10.9, 10.9, {"tokens": 4}, True),
        Span(Kind.COMMIT.value, Lane.EDGE, 10.5, 10.5, {"tokens": 2}, True),
    ]
    came = arrivals(spans, 10.0)
    assert [count for _, count in came] == [2, 4]
    assert [seconds for seconds, _ in came] == pytest.approx([0.5, 0.9])
    assert [count for _, count in arrivals(spans[:1], 10.0)] == [1]


@pytest.mark.parametrize("mode", ["cloud", "full", "edge"])
def test_on_virtual_time_the_last_token_comes_with_the_answer(mode: str) -> None:
    recording = Synthetic(tokens=20).draw(2)
    backend = VirtualTime(recording, load_timings("go2"), with_arrivals=True)
    for result in backend.run([Arm(mode, mode)]).answers[mode]:
        came = result.more["arrivals"]
        assert sum(count for _, count in came) == len(result.tokens)
        assert came[-1][0] == pytest.approx(result.stats.total_s)
        assert came[0][0] == pytest.approx(result.stats.first_commit_s)
