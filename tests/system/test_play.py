"""A bag of somebody else's camera through the real node: what is played and answered is in the new bag."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from spec_vlm_nav.messages import KINDS, AskedPrompt
from speculation.language.prompts import ActionKind, ResponseOrder, compose
from tests import bags
from tests.system.chain import FIND
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.files import read

FRAMES, PERIOD_NS = 15, 200_000_000


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds of a raw camera under a name of its own, and odometry."""
    messages: list[tuple[str, int, Any]] = []
    for index in range(FRAMES):
        stamp_ns = bags.START_NS + index * PERIOD_NS
        messages.append(("/front/rgb", stamp_ns, bags.plain("bgr8", (10 * index, 90, 200), stamp_ns)))
        messages.append(("/utlidar/odom", stamp_ns, bags.odometry(stamp_ns)))
    return bags.write(tmp_path_factory.mktemp("recorded") / "bag", messages)


def play(bag: Path, model: Path, out: Path, *words: str) -> int:
    folders = ["--target-model", str(model), "--draft-model", str(model), "--out", str(out)]
    return main(["play", str(bag), *folders, "--instruction", FIND, *words])


def recorded(out: Path) -> dict[str, list[Any]]:
    """Return the messages of the new bag by topic."""
    found: dict[str, list[Any]] = defaultdict(list)
    for topic, _, message in read(out / "bag"):
        found[topic].append(message)
    return found


def stamp(message: Any) -> tuple[int, int]:
    return message.header.stamp.sec, message.header.stamp.nanosec


def prompt(message: Any) -> AskedPrompt:
    return AskedPrompt.from_json(message.data)


def test_every_answer_is_about_a_played_frame_and_nothing_is_told_to_move(
    bag: Path, turning_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(bag, turning_model, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "Action: turn left small" in said and "the bag is over" in said and "tokens per commit" in said
    found = recorded(tmp_path / "out")
    assert set(found) == {
        "/camera/image/compressed", "/odom", "/instruction", "/vlm_nav/decision", "/vlm_nav/prompt",
        "/decoding_stats", "/navigation_state",
    }  # fmt: skip
    frames = {stamp(frame) for frame in found["/camera/image/compressed"]}
    # The first frame stands until it is answered; after it every frame is shown once.
    assert len(frames) >= FRAMES and len(found["/odom"]) == FRAMES
    answered = [stamp(stats) for stats in found["/decoding_stats"]]
    asked = {entry.stamp_ns: entry.prompt for entry in map(prompt, found["/vlm_nav/prompt"])}
    assert {seconds * 1_000_000_000 + rest for seconds, rest in answered} <= set(asked)
    assert set(asked.values()) == {compose(FIND, order=ResponseOrder.ACTION_FIRST)}, (
        "nobody walks in a dry run, so nothing was done"
    )
    assert answered and set(answered) <= frames and len(set(answered)) == len(answered)
    decided = [entry for entry in found["/vlm_nav/decision"] if entry.kind == KINDS[ActionKind.TURN_LEFT]]
    assert [stamp(entry) for entry in decided] == answered
    assert {entry.goal for entry in decided} == {decided[0].goal}
    assert [text.data for text in found["/instruction"]] == [FIND]


def test_a_stop_is_not_the_end_of_the_bag(bag: Path, stopping_model: Path, tmp_path: Path) -> None:
    assert play(bag, stopping_model, tmp_path / "out", "--mode", "edge") == 0
    found = recorded(tmp_path / "out")
    goals = [entry.goal for entry in found["/vlm_nav/decision"] if entry.kind == KINDS[ActionKind.STOP]]
    assert len(goals) == len(set(goals)) >= 2


def test_what_cannot_be_played_is_one_sentence(
    bag: Path, turning_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(tmp_path, turning_model, tmp_path / "out") == 2
    assert "is no bag" in capsys.readouterr().err
    assert play(bag, tmp_path, tmp_path / "out") == 2
    assert "no target model in" in capsys.readouterr().err
    assert play(bag, turning_model, bag.parent) == 2
    assert "would replace the bag that is played" in capsys.readouterr().err
    assert play(bag, turning_model, tmp_path / "out", "--camera-topic", "/none", "--mode", "edge") == 2
    said = capsys.readouterr().err
    assert "has no topic /none; its camera topics are /front/rgb" in said and "Traceback" not in said
