"""The report of steps whose times are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_drafter import DecodingStats
from evaluation.compare import changed_answers, differences, side_by_side
from evaluation.replay_report import build, headlines, left_out_lines, overruns, text
from evaluation.results import Arm, FrameKey, Step

DECLARED = {"scale": "1:10", "draft_s": 0.01, "verify_s": 0.06, "one_way_s": 0.0}
SETTINGS: dict[str, Any] = {
    "bags": {"walk": "abc"}, "profile": "go2_a100_scaled", "dtype": "float32", "gamma": 4, "target": "t", "draft": "d",
    "declared": DECLARED,
}  # fmt: skip


def step(index: int, mode: str, action: str, verify_s: float = 0.06, interruptions: int = 0) -> Step:
    stats = DecodingStats(
        mode=mode, tokens=8, rounds=2, cloud_passes=2, draft_forwards=8, draft_s=0.08, server_compute_s=2 * verify_s,
        total_s=1.0 if mode == "cloud" else 0.5, first_commit_s=0.2, interruptions=interruptions,
    )  # fmt: skip
    key = FrameKey("walk", index)
    return Step(key, Arm(mode), index * 10**8, "", "find it", "find it", (index, 2), action, action, "stop", 0.0, stats)


def test_a_report_says_when_a_declared_time_was_not_kept() -> None:
    kept = build([step(0, "cloud", "stop"), step(0, "sd", "stop")], SETTINGS, [], "here")
    assert overruns(kept) == [] and kept["table8"]["0"]["ar_to_sd"] == 2.0
    slow = build([step(0, "cloud", "stop"), step(0, "sd", "stop", 0.2, 1)], SETTINGS, [], "here")
    (sentence,) = overruns(slow)
    assert "a target forward took 200 ms where 60 ms are declared" in sentence
    assert sentence in headlines(slow) and any("lost 1 times" in line for line in headlines(slow))


def test_an_emulated_link_is_named_and_its_queues_are_no_overrun() -> None:
    late = [replace(step(0, mode, "stop"), rtt_s=0.5) for mode in ("cloud", "sd")]
    declared = {**SETTINGS, "declared": {**DECLARED, "one_way_s": 0.01}}
    assert "a message took 250 ms where 10 ms are declared" in " ".join(headlines(build(late, declared, [], "here")))
    emulated = {**declared, "link": "lte", "declared_link": {"scale": "declared, not measured"}}
    data = build(late, emulated, [], "here")
    assert overruns(data) == [] and "link lte (declared, not measured)" in headlines(data)


def test_staleness_counts_the_frames_that_a_live_robot_would_skip() -> None:
    data = build([step(index, "cloud", "stop") for index in range(21)], SETTINGS, [], "here")
    cloud = data["arms"]["cloud"]
    # Ten frames a second, a second an answer: every tenth is looked at, at once.
    assert cloud["looked_at"] == pytest.approx(3 / 21) and cloud["stale_s"]["p50"] == pytest.approx(1.0)


def test_reports_are_compared_frame_by_frame() -> None:
    one = build([step(0, "cloud", "stop"), step(1, "cloud", "stop")], SETTINGS, [], "a box, load 1.0 at the end")
    other = build([step(0, "cloud", "stop"), step(1, "cloud", "")], {**SETTINGS, "target": "u"}, [], "a box, load 2.0")
    assert differences(one, other) == ["target differs: 't' against 'u'"]
    changed = changed_answers(one, other)["cloud"]
    assert (changed["frames"], changed["other_tokens"]) == (2, 0)
    assert changed["other_action"] == {"walk:1": ["stop", "unreadable"]}
    rows = side_by_side(one, other, "cloud").splitlines()
    assert rows[1].split()[-3:] == ["1000", "1000", "1.00"]
    assert any(row.split()[:2] == ["oracle:", "exact"] and row.split()[-1] == "0.50" for row in rows)


def test_what_was_left_out_is_listed_by_reason() -> None:
    left_out = [{"bag": "walk", "frame": index, "reason": "no image"} for index in range(10)]
    left_out.append({"bag": "other", "frame": None, "reason": "no bag"})
    data = build([step(0, "fsd", "stop")], SETTINGS, left_out, "here")
    assert left_out_lines(data) == ["walk: no image (10 frames: 0, 1, 2, 3, 4, 5, 6, 7, ...)", "other: no bag"]
    assert data["reference"] is None and "Agreement with the oracle" in text(data)
    with pytest.raises(ValueError, match="no frame was evaluated: no image"):
        build([], SETTINGS, left_out, "here")
