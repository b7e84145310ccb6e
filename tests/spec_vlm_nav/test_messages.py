"""Actions as numbers, and the numbers as the interface files define them."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest

from edge_drafter.stats import DecodingStats
from spec_vlm_nav import messages
from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.messages import AskedPrompt, figures, to_action, to_done, to_numbers
from spec_vlm_nav.motion import Outcome
from speculation.language.prompts import ACTIONS, MOTIONS, ActionKind, Blocked, NavigationAction, Past
from speculation.wire import MAX_PROMPT_CHARS

INTERFACES = PROJECT / "ros_ws/src/spec_vlm_nav_interfaces/msg"


def constants(name: str) -> dict[str, int]:
    text = (INTERFACES / f"{name}.msg").read_text()
    return {word: int(value) for word, value in re.findall(r"^uint8 ([A-Z_]+)=(\d+)", text, re.MULTILINE)}


@pytest.mark.parametrize("action", [*ACTIONS, None])
def test_every_action_survives_the_way_through_a_message(action: NavigationAction | None) -> None:
    kind, size, value = to_numbers(action)
    assert to_action(kind, size) == action
    assert value == (action.metres or action.radians if action in MOTIONS else 0.0)


@pytest.mark.parametrize("kind,size", [(9, 1), (6, 0), (1, 9), (1, 0), (4, 2)])
def test_numbers_that_are_no_action_are_refused(kind: int, size: int) -> None:
    with pytest.raises(ValueError):
        to_action(kind, size)


def test_the_numbers_are_those_of_the_interface_files() -> None:
    action, status = constants("NavigationAction"), constants("ActionStatus")
    assert action["HOLD"] == messages.HOLD
    assert {kind: action[kind.name] for kind in ActionKind} == messages.KINDS
    assert {size: action[size.name if size else "NONE"] for size in messages.SIZES} == messages.SIZES
    assert {outcome: status[outcome.name] for outcome in Outcome} == messages.OUTCOME_CODE
    assert (action["CLOUD_VERIFIED"], action["EDGE_ONLY"], action["FALLBACK"]) == (0, 1, 2)


ABOUT_THE_STEP = {
    "header", "goal", "step", "profile", "answer", "frame_age_s", "link_rtt_s", "link", "action_s", "in_motion",
}  # fmt: skip
"""Fields of DecodingStats.msg that the node itself sets."""
MESSAGE_KINDS = {"string": str, "uint32": int, "float32": float, "uint16[]": list, "uint32[]": list}


def test_the_message_has_every_figure_of_a_step_and_no_other() -> None:
    text = (INTERFACES / "DecodingStats.msg").read_text()
    declared = {name: kind for kind, name in re.findall(r"^([a-z0-9_/\[\]A-Z]+) +([a-z_]+)", text, re.MULTILINE)}
    assert declared.keys() > ABOUT_THE_STEP
    got = figures(DecodingStats())
    assert got.keys() == declared.keys() - ABOUT_THE_STEP
    assert got.keys() == get_type_hints(DecodingStats).keys() | {"tau", "early_layers"}
    for name, value in got.items():
        assert type(value) is MESSAGE_KINDS[declared[name]], name


def test_a_prompt_survives_its_text_and_a_bad_one_is_named() -> None:
    asked = AskedPrompt(1_700_000_000_000_000_001, "find the red ball\nDone: forward large")
    assert AskedPrompt.from_json(asked.to_json()) == asked
    long = AskedPrompt(1, "x" * (MAX_PROMPT_CHARS + 1)).to_json()
    for text in ("{", "[]", '{"stamp_ns": "1", "prompt": "x"}', '{"stamp_ns": 1, "prompt": ""}', long):
        with pytest.raises(ValueError, match="a recorded prompt must be JSON with stamp_ns and prompt"):
            AskedPrompt.from_json(text)


def test_what_was_done_is_read_and_a_text_that_is_no_motion_is_named() -> None:
    entries: list[Past] = [*MOTIONS, *map(Blocked, MOTIONS)]
    assert to_done([entry.text for entry in entries]) == tuple(entries)
    for texts, problem in (
        (["forward small", "turn around"], r"done\[1\] is 'turn around'; known are forward small"),
        (["stop"], r"done\[0\] is 'stop'"),
        (["forward small", "stop blocked"], r"done\[1\] is 'stop blocked'"),
        (["forward small"] * 1001, "1001 actions, the limit is 1000"),
    ):
        with pytest.raises(ValueError, match=problem):
            to_done(texts)
