from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculation.trace import Lane, Span, Trace, load


def test_the_file_is_chrome_json_in_microseconds_from_the_first_span(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("late", Lane.LINK, 5.5, 6.0, round=1)
    trace.add("verify", Lane.CLOUD, 5.0, 5.5)
    trace.mark("commit", Lane.EDGE, 6.0, tokens=3)
    trace.write(tmp_path / "out" / "trace.json")
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    drawn = {(lanes[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert drawn == {("link", "late", 500000.0, 500000.0), ("cloud", "verify", 0.0, 500000.0)}
    (moment,) = (event for event in events if event["ph"] == "i")
    assert (lanes[moment["tid"]], moment["ts"], moment["args"]) == ("edge", 1000000.0, {"tokens": 3})
    assert "dur" not in moment
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trace.json"]


def test_a_written_trace_is_read_back(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("verify", Lane.CLOUD, 0.25, 0.5, step=7, round=1)
    trace.add("step", Lane.EDGE, 0.0, 1.0, step=7)
    trace.mark("early token", Lane.LINK, 0.375, layer=2, confidence=0.5, used=True)
    trace.write(tmp_path / "trace.json")
    assert load(tmp_path / "trace.json") == [
        Span("step", Lane.EDGE, 0.0, 1.0, {"step": 7}),
        Span("verify", Lane.CLOUD, 0.25, 0.5, {"step": 7, "round": 1}),
        Span("early token", Lane.LINK, 0.375, 0.375, {"layer": 2, "confidence": 0.5, "used": True}, moment=True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"traceEvents": [{"ph": "X", "tid": 1, "name": "x", "ts": 0, "args": {}}]}',
        '{"traceEvents": [{"ph": "M", "tid": 1, "args": {"name": "link"}},{"ph": "X", "tid": 1, "ts": ""}]}',
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no trace of this project"):
        load(path)
    with pytest.raises(ValueError, match=r"missing\.json cannot be read: No such file"):
        load(tmp_path / "missing.json")


def test_only_the_latest_spans_are_kept() -> None:
    trace = Trace(limit=2)
    for start in range(5):
        trace.add("x", Lane.EDGE, start, start + 1)
    assert [span.start for span in trace.spans] == [3, 4]
    with pytest.raises(ValueError, match="limit is 0"):
        Trace(limit=0)
