from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculation.trace import Lane, Trace, centred


def test_the_other_sides_time_is_centred_between_send_and_receive() -> None:
    assert centred(10.0, 20.0, [2.0, 4.0]) == [(12.0, 14.0), (14.0, 18.0)]
    assert centred(0.0, 1.0, []) == []


def test_spans_carry_clock_lane_and_arguments_also_when_the_block_fails() -> None:
    times = iter([1.0, 3.0])
    trace = Trace(lambda: next(times))
    with pytest.raises(KeyError), trace.span("draft", Lane.EDGE, round=7):
        raise KeyError
    (span,) = trace.spans
    assert (span.name, span.lane, span.start, span.end, dict(span.args)) == ("draft", Lane.EDGE, 1.0, 3.0, {"round": 7})


def test_the_file_is_chrome_json_in_microseconds_from_the_first_span(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("late", Lane.LINK, 5.5, 6.0, round=1)
    trace.add_remote(5.0, 6.0, {"queue": 0.0, "verify": 0.5})
    trace.write(tmp_path / "out" / "trace.json")
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    drawn = {(lanes[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert drawn == {("link", "late", 250000.0, 500000.0), ("cloud", "verify", 0.0, 500000.0)}


def test_only_the_latest_spans_are_kept() -> None:
    trace = Trace(limit=2)
    for start in range(5):
        trace.add("x", Lane.EDGE, start, start + 1)
    assert [span.start for span in trace.spans] == [3, 4]
    with pytest.raises(ValueError, match="limit is 0"):
        Trace(limit=0)
