"""The report of steps whose times and actions are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_drafter import DecodingStats
from speculation.language.prompts import STOP, ActionKind, ActionSize, NavigationAction
from vlm_nav_evaluation.experiment.reference_answers import TARGET
from vlm_nav_evaluation.experiment.run import Answer, Run
from vlm_nav_evaluation.replay.report import AGREEMENT, Pair, ReplayArm, agreement, build, headlines, overruns, text
from vlm_nav_evaluation.tables import figures_table

DECLARED = {"scale": "1:10", "draft_s": 0.01, "verify_s": 0.06, "one_way_s": 0.0}
SETTINGS: dict[str, Any] = {
    "bags": {"walk": "abc"}, "profile": "go2_a100_scaled", "dtype": "float32", "gamma": 4, "target": "t", "draft": "d",
    "drafting": "", "declared": DECLARED,
}  # fmt: skip


def answer(index: int, mode: str, action: str = "stop", verify_s: float = 0.06, **more: Any) -> Answer:
    stats = DecodingStats(
        mode=mode, tokens=8, rounds=2, cloud_passes=2, draft_forwards=8, draft_s=0.08, server_compute_s=2 * verify_s,
        total_s=1.0 if mode == "cloud" else 0.5, first_commit_s=0.2, interruptions=more.pop("interruptions", 0),
    )  # fmt: skip
    notes = {"bag": "walk", "stamp_ns": index * 10**8, "action": action, "oracle": "stop", "rtt_s": 0.0}
    return Answer((index, 2), stats, {**notes, **more})


def report(settings: dict[str, Any] = SETTINGS, **answers: list[Answer]) -> dict[str, Any]:
    frames = len(next(iter(answers.values())))
    run = Run(answers, [f"walk:{index}" for index in range(frames)])
    return build(run, [ReplayArm(mode) for mode in answers], settings, [], "here")


def test_a_report_says_when_a_declared_time_was_not_kept() -> None:
    kept = report(cloud=[answer(0, "cloud")], sd=[answer(0, "sd")])
    assert overruns(kept) == [] and kept["table8"]["0"]["ar_to_sd"] == 2.0
    slow = report(cloud=[answer(0, "cloud")], sd=[answer(0, "sd", verify_s=0.2, interruptions=1)])
    (sentence,) = overruns(slow)
    assert "a target forward took 200 ms where 60 ms are declared" in sentence
    assert sentence in headlines(slow) and any("lost 1 times" in line for line in headlines(slow))
    assert "2.00x" in text(slow)


def test_table_8_has_a_column_for_each_round_trip_and_dashes_for_what_did_not_run() -> None:
    run = Run({"sd": [answer(0, "sd", rtt_s=0.02)], "cloud +40 ms": [answer(0, "cloud", rtt_s=-1.0)]}, ["walk:0"])
    data = build(run, [ReplayArm("sd"), ReplayArm("cloud", 40.0)], {**SETTINGS, "gamma": "auto"}, [], "here")
    lines = text(data).split("\n\n")[0].splitlines()
    assert lines[0] == "Early Exits, Table 8, for this run"
    assert lines[1].split("  ")[-2:] == [" this run", "this run +40 ms"]
    cells = {line[:36].rstrip(): line[36:].split() for line in lines[2:]}
    assert cells["drafting latency of a token T_p, ms"] == ["10", "-"]
    assert cells["drafting latency gamma T_p, ms"] == cells["speed-up AR -> SD"] == ["-", "-"]
    own = build(run, [ReplayArm("sd"), ReplayArm("cloud", 40.0)], {**SETTINGS, "drafting": "gamma=6"}, [], "here")
    assert own["table8"]["0"]["gamma_draft_s"] == pytest.approx(0.06), "drafting goes before --gamma"
    assert cells["verification latency T_q, ms"] == ["60", "-"] and cells["communication latency T_c, ms"] == [
        "10",
        "-",
    ]


def test_answers_are_compared_with_the_targets_and_the_oracles() -> None:
    own = [answer(0, "sd"), answer(0, "sd", "")]
    data = report(cloud=[answer(0, "cloud"), answer(1, "cloud", "forward small")], sd=own)
    assert data["reference"] == "cloud" and data["arms"]["cloud"]["target"] is None
    assert data["arms"]["sd"]["target"]["identical_tokens"] == 0.5
    assert data["arms"]["sd"]["oracle"]["kind"] == 0.5 and data["arms"]["sd"]["oracle"]["unreadable"] == 1
    run = Run({"sd": own[:1], TARGET: [answer(0, TARGET, "")]}, ["walk:0"])
    checked = build(run, [ReplayArm("sd")], SETTINGS, [], "here")
    assert checked["reference"] == TARGET and checked["arms"]["sd"]["target"]["frames"] == 0
    assert checked["target_alone_oracle"]["unreadable"] == 1 and TARGET not in checked["arms"]


def test_answers_are_compared_with_those_that_were_given_while_recording() -> None:
    verified, alone = {"given": ["full", "yes"]}, {"given": ["edge", "yes"]}
    own = [answer(0, "sd", text="yes", **verified), answer(1, "sd", text="no", **verified), answer(2, "sd", **alone)]
    data = report(sd=own, edge=[replace(each, more={**each.more, "text": "yes"}) for each in own])
    assert data["arms"]["sd"]["given"] == {"compared": 2, "different": ["walk:1"]}
    assert data["arms"]["edge"]["given"] == {"compared": 1, "different": []}
    said = " ".join(headlines(data))
    assert "sd: 1 of 2 answers are those that were given while recording. NOT at walk:1: is it the same" in said
    assert "edge: 1 of 1 answers are those that were given while recording" in said
    assert report(sd=[answer(0, "sd")])["arms"]["sd"]["given"] is None


LEFT = NavigationAction(ActionKind.TURN_LEFT, ActionSize.SMALL)
FAR_LEFT = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
RIGHT = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.SMALL)
AHEAD = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)


def test_rates_say_what_was_equal_and_what_was_mixed_up() -> None:
    pairs: list[Pair] = [
        (LEFT, LEFT), (FAR_LEFT, LEFT), (RIGHT, LEFT), (RIGHT, RIGHT), (STOP, STOP), (STOP, AHEAD), (AHEAD, STOP),
        (None, AHEAD),
    ]  # fmt: skip
    found = agreement(pairs)
    assert (found["frames"], found["exact"], found["kind"], found["unreadable"]) == (8, 3 / 8, 4 / 8, 1)
    assert found["left_right_swapped"] == 0.25
    assert (found["stop_precision"], found["stop_recall"]) == (0.5, 0.5)
    assert "37.5%" in figures_table("", {"fsd": found, "without a stop": agreement([(LEFT, LEFT)])}, AGREEMENT)
