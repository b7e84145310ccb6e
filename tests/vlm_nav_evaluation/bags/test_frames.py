"""Frames from bags of every kind: storages, encodings, names, and whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rosbags.rosbag2 import StoragePlugin

from adapters_training.sources import LeftOut
from spec_vlm_nav.messages import AskedPrompt
from speculation.language.prompts import ACTIONS, STOP, ResponseOrder, Vocabulary, compose
from tests import bags
from tests.models import CLASSES, COLOURS, frame
from vlm_nav_evaluation.bags.datasets import open_questions
from vlm_nav_evaluation.bags.frames import STATS, BagFrame, FrameSource, Given, OracleLabel, Selection
from vlm_nav_evaluation.bags.playback import items

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
WORDS = Vocabulary(COLOURS, CLASSES)
ASKED = Selection(instruction="find the red ball")


def load(path: Path, selection: Selection = ASKED) -> tuple[list[BagFrame], list[LeftOut]]:
    """Return what is asked about a recording of any kind, and what is left out."""
    with open_questions(path, selection, WORDS) as source:
        items = list(source)
        assert list(source) == items, "a second look gives the same"
    frames = [item for item in items if isinstance(item, BagFrame)]
    return frames, [item for item in items if isinstance(item, LeftOut)]


@pytest.mark.parametrize("kind", ["mcap", "sqlite3", "humble", "file"])
def test_every_storage_gives_the_same_frames(tmp_path: Path, kind: str) -> None:
    plugin = StoragePlugin.MCAP if kind in ("mcap", "file") else StoragePlugin.SQLITE3
    label = OracleLabel(bags.stamp_of(1), STOP.text, "reached", ("red ball",))
    messages = [bags.told("find the red ball"), *bags.camera(3, "/dog/front/image")]
    messages.append(("/sim/oracle_action", bags.stamp_of(2), bags.text(label.to_json())))
    path = bags.write(tmp_path / "bag", messages, plugin)
    if kind == "humble":
        bags.as_humble(path)
    frames, problems = load(next(path.glob("*.mcap")) if kind == "file" else path, Selection())
    assert not problems
    assert [(item.index, item.stamp_ns, item.instruction) for item in frames] == [
        (index, bags.stamp_of(index), "find the red ball") for index in range(3)
    ]
    assert [item.jpeg for item in frames] == [bags.jpeg(frame(index)) for index in range(3)]
    assert [item.label for item in frames] == [None, label, None]


@pytest.mark.parametrize(
    ("changes", "indices"),
    [
        ({"skip": 3}, range(3, 20)),
        ({"skip": 1, "limit": 2}, (1, 2)),
        ({"fps": 4.0}, (0, 3, 5, 8, 10, 13, 15, 18)),
        ({"fps": 100.0}, range(20)),
    ],
)
def test_skip_rate_and_limit_choose_frames(tmp_path: Path, changes: dict[str, float], indices: range) -> None:
    path = bags.write(tmp_path / "bag", bags.camera(20))
    frames, _ = load(path, replace(ASKED, **changes))
    assert [item.index for item in frames] == list(indices)


def test_the_last_instruction_counts_and_frames_before_the_first_are_left_out(tmp_path: Path) -> None:
    said = [
        bags.told("find the red ball", bags.stamp_of(1)),
        bags.told("find the blue chair", bags.stamp_of(3)),
        bags.told("find the dragon", bags.stamp_of(4)),
    ]
    path = bags.write(
        tmp_path / "bag", sorted([*said, *bags.camera(5)], key=lambda entry: (entry[1], entry[0][1] != "i"))
    )
    frames, problems = load(path, Selection())
    assert [(item.index, item.instruction[9:]) for item in frames] == [
        (1, "red ball"),
        (2, "red ball"),
        (3, "blue chair"),
    ]
    assert [problem.index for problem in problems] == [0, 4]
    assert "--instruction" in problems[0].reason and "names no known object" in problems[1].reason
    assert len(load(path)[0]) == 5


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("", r"several camera topics: /a/image \(1 frames\), /b/image \(1 frames\); choose one with --topic"),
        ("/c", "has no topic /c; its camera topics are /a/image"),
        ("/instruction", r"has no images \(std_msgs/msg/String\) on /instruction"),
    ],
)
def test_the_camera_topic_must_be_clear(tmp_path: Path, topic: str, complaint: str) -> None:
    path = bags.write(
        tmp_path / "bag", [bags.told("find the red ball"), *bags.camera(1, "/a/image"), *bags.camera(1, "/b/image")]
    )
    with pytest.raises(ValueError, match=complaint):
        FrameSource(path, Selection(topic=topic))
    assert len(load(path, Selection(topic="b/image"))[0]) == 1


@pytest.mark.parametrize("topic", ["/cam/color/image_raw/compressed", "/dog/front"])
def test_depth_is_no_camera_and_neither_is_a_topic_without_messages(tmp_path: Path, topic: str) -> None:
    depth = [
        ("/cam/aligned/compressedDepth", bags.compressed(bags.jpeg(frame(0)), bags.START_NS, "16UC1; compressedDepth")),
        ("/cam/depth/image_rect", bags.plain("rgb8", (1, 1, 1))),
        ("/cam/d", bags.raw(bytes(12), "16UC1", 2, 3, 6)),
        ("/cam/packed", bags.compressed(bags.jpeg(frame(0)), bags.START_NS, "16UC1; compressedDepth png")),
    ]
    messages = [(name, bags.START_NS - 1, message) for name, message in depth]
    path = bags.write(tmp_path / "bag", [*messages, *bags.camera(3, topic)])
    assert len(load(path)[0]) == 3
    assert [item.stamp_ns for item in items(path)] == [bags.stamp_of(index) for index in range(3)]
    alone = bags.write(tmp_path / "alone", messages)
    with pytest.raises(ValueError, match=r"has depth images alone: .*; depth is no camera"):
        FrameSource(alone, ASKED)


def test_a_label_survives_its_text_and_a_bad_one_is_named(tmp_path: Path) -> None:
    for action in ACTIONS:
        label = OracleLabel(5, action.text, "search", ("red ball", "blue chair"))
        assert OracleLabel.from_json(label.to_json()) == label
    for text in ("{", "[]", '{"action": "stop"}', '{"stamp_ns": 1, "action": "fly"}'):
        with pytest.raises(ValueError, match="oracle label"):
            OracleLabel.from_json(text)
    messages = [*bags.camera(2), ("/oracle_action", bags.stamp_of(1), bags.text("{"))]
    frames, problems = load(bags.write(tmp_path / "bag", messages))
    assert len(frames) == 2 and "oracle label" in problems[0].reason


def test_the_words_that_were_asked_about_a_frame_are_asked_again(tmp_path: Path) -> None:
    asked = "find the red ball\nDone: forward large x2"
    said = [
        ("/vlm_nav/prompt", bags.stamp_of(9), bags.text(AskedPrompt(bags.stamp_of(1), asked).to_json())),
        ("/vlm_nav/prompt", bags.stamp_of(9), bags.text(AskedPrompt(bags.stamp_of(1) + 1, "of no frame").to_json())),
        ("/vlm_nav/prompt", bags.stamp_of(9), bags.text("find the red ball")),
    ]
    path = bags.write(tmp_path / "bag", [bags.told("find the red ball"), *bags.camera(3), *said])
    frames, problems = load(path, Selection())
    assert [item.prompt for item in frames] == ["find the red ball", asked, "find the red ball"]
    assert {item.instruction for item in frames} == {"find the red ball"}
    assert [problem.reason.partition(":")[0] for problem in problems] == [
        "a recorded prompt must be JSON with stamp_ns and prompt"
    ]
    order = ResponseOrder.ACTION_FIRST
    plain, _ = load(path, Selection(order=order, guide=True))
    guided = compose("find the red ball", (), order, True)
    assert [item.prompt for item in plain] == [guided, asked, guided]
    for selection in (Selection(order=order, guide=True, anew=True), replace(ASKED, order=order, guide=True)):
        assert [item.prompt for item in load(path, selection)[0]] == [guided] * 3


def test_what_was_answered_while_recording_comes_with_its_question_and_what_is_missing_is_told(tmp_path: Path) -> None:
    """Of four answers one has a frame that the recorder lost, one no prompt; one frame was asked about twice."""

    def prompt(stamp_ns: int, words: str) -> tuple[str, int, Any]:
        return "/vlm_nav/prompt", stamp_ns, bags.text(AskedPrompt(stamp_ns, words).to_json())

    def stats(stamp_ns: int, later: int = 1) -> tuple[str, int, Any]:
        message = bags.make(STATS, header=bags.header(stamp_ns), mode="full", answer=f"Action: stop {stamp_ns}")
        return "/decoding_stats", stamp_ns + later, message

    first, second, third, lost = map(bags.stamp_of, (0, 1, 2, 9))
    messages = [
        *bags.camera(4),
        *(prompt(stamp_ns, f"find the red ball\n{number}") for number, stamp_ns in enumerate((first, second, lost))),
        *map(stats, (first, second, third, lost)),
        ("/vlm_nav/prompt", second + 2, bags.text(AskedPrompt(second, "dropped").to_json())),
    ]
    path = bags.write(tmp_path / "bag", sorted(messages, key=lambda message: message[1]))
    frames, problems = load(path, Selection(asked=True))
    assert [(item.prompt, item.instruction) for item in frames] == [
        (f"find the red ball\n{number}", "find the red ball") for number in (0, 1)
    ], "no instruction is needed"
    assert [item.given for item in frames] == [Given("full", f"Action: stop {stamp}") for stamp in (first, second)]
    lacking, missing = (problem.reason for problem in problems)
    assert lacking.startswith("1 of 4 recorded answers lack their prompts: record the topic vlm_nav/prompt")
    assert missing.startswith("2 of 4 recorded answers are about frames that /camera/image/compressed lacks")
    assert all(item.given is None for item in load(path)[0]), "another instruction was not answered"
    anew, _ = load(path, replace(ASKED, asked=True))
    assert [(item.index, item.prompt) for item in anew] == [(0, "find the red ball"), (1, "find the red ball")]
