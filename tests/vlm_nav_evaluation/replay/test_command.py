"""Replay of small bags through a real verifier process, with the tiny random pair in float64."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest

from spec_vlm_nav.messages import AskedPrompt
from speculation.language.prompts import STOP, VOCABULARY_FILE, compose
from tests import bags
from tests.cloud_verifier.process import Verifier, start
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.bags.frames import OracleLabel

FRAMES = 4
ASKED = "find the red ball\nDone: turn left large"


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four frames of which the third does not decode, all labelled."""
    messages = [bags.told("find the red ball"), *bags.camera(FRAMES)]
    topic, stamp_ns, _ = messages[3]
    messages[3] = (topic, stamp_ns, bags.compressed(b"\xff\xd8\xff", stamp_ns))
    for index in range(FRAMES):
        label = OracleLabel(bags.stamp_of(index), STOP.text)
        messages.append(("/oracle_action", bags.stamp_of(index), bags.text(label.to_json())))
    messages.append(("/vlm_nav/prompt", bags.stamp_of(1), bags.text(AskedPrompt(bags.stamp_of(1), ASKED).to_json())))
    return bags.write(tmp_path_factory.mktemp("replay") / "walk", messages)


@pytest.fixture(scope="module")
def verifier(tiny_target: Path) -> Iterator[Verifier]:
    running = start(tiny_target, "--dtype", "float64")
    yield running
    running.stop()


def replay(out: Path, bags_: list[Path], draft: Path, verifier: Verifier, *more: str) -> int:
    return main(
        ["replay", *map(str, bags_), "--out", str(out), "--draft-model", str(draft), "--verifier", verifier.address,
         "--dtype", "float64", "--max-tokens", "12", *more]
    )  # fmt: skip


def report(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return data


def test_two_runs_agree_and_a_third_goes_on(
    tmp_path: Path, bag: Path, tiny_target: Path, tiny_draft: Path, verifier: Verifier,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    both = [bag, tmp_path / "lost.mcap"]
    modes = ("--modes", "cloud,fsd,edge", "--rtt-ms", "0,20")
    assert replay(one, both, tiny_draft, verifier, *modes, "--check", "--target-model", str(tiny_target)) == 0
    said = capsys.readouterr().out
    data = report(one)
    assert data["frames"] == FRAMES - 1 and "Early Exits, Table 8" in said and "left out: " in said
    reasons = [(entry["bag"], entry["frame"]) for entry in data["left_out"]]
    assert reasons == [("walk", 2), ("lost.mcap", None)]
    assert set(data["arms"]) == {"cloud", "fsd", "edge", "cloud +20 ms", "fsd +20 ms"}
    assert data["reference"] == "target"
    steps = [json.loads(line) for line in (one / "steps.jsonl").read_text().splitlines()]
    assert {(step["more"]["index"], step["more"]["prompt"]) for step in steps} == {
        (0, "find the red ball"), (1, ASKED), (3, "find the red ball"),
    }  # fmt: skip
    for label, arm in data["arms"].items():
        assert arm["figures"]["steps"] == FRAMES - 1 and arm["oracle"]["frames"] == FRAMES - 1
        assert label == "edge" or arm["target"]["identical_tokens"] == 1.0
    slow, fast = (data["arms"][label]["figures"]["total_s"]["min"] for label in ("cloud +20 ms", "cloud"))
    assert slow > 0.02 and fast > 0.0
    picture = cv2.imread(str(one / "latency.png"))
    assert picture is not None and picture.std() > 5.0
    assert "latency.png" in (one / "report.html").read_text()

    modes = ("--modes", "fsd,edge", "--rtt-ms", "0")
    assert replay(two, [bag], tiny_draft, verifier, *modes) == 0
    again = report(two)
    for label, arm in again["arms"].items():
        assert arm["oracle"] == data["arms"][label]["oracle"]
        assert again["answers"][label] == data["answers"][label]

    lines = (two / "steps.jsonl").read_text().splitlines(keepends=True)
    (two / "steps.jsonl").write_text("".join(lines[:5]) + lines[5][:50])
    capsys.readouterr()
    assert replay(two, [bag], tiny_draft, verifier, *modes) == 0
    assert "going on: 5 results" in capsys.readouterr().out
    resumed = report(two)
    assert resumed["tokens"] == again["tokens"]
    assert (two / "steps.jsonl").read_text().startswith("".join(lines[:5]))
    assert len((two / "steps.jsonl").read_text().splitlines()) == len(lines)

    assert replay(two, [bag], tiny_draft, verifier, *modes, "--gamma", "2") == 2
    assert "gamma was 4 and is 2" in capsys.readouterr().err
    assert replay(two, [bag], tiny_draft, verifier, *modes, "--response-order", "action_first") == 2
    assert "response_order was reason_first and is action_first" in capsys.readouterr().err


def test_a_question_holds_the_last_frames_of_the_bag(
    tmp_path: Path, bag: Path, tiny_target: Path, tiny_draft: Path, verifier: Verifier,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """About three of them the modes answer as the target alone does; a verifier for one refuses them."""
    asked = ("--modes", "cloud,sd", "--frames", "3", "--check", "--target-model", str(tiny_target))
    taking = start(tiny_target, "--dtype", "float64", "--frames", "3")
    try:
        assert replay(tmp_path / "several", [bag], tiny_draft, taking, *asked) == 0
    finally:
        taking.stop()
    data = report(tmp_path / "several")
    assert data["settings"]["views"] == 3 and data["frames"] == FRAMES - 1
    assert all(data["arms"][mode]["target"]["identical_tokens"] == 1.0 for mode in ("cloud", "sd"))
    assert replay(tmp_path / "one", [bag], tiny_draft, verifier, "--modes", "cloud", "--frames", "1") == 0
    alone = report(tmp_path / "one")
    assert alone["tokens"] != data["tokens"], "the frames before it matter"
    capsys.readouterr()
    assert replay(tmp_path / "refused", [bag], tiny_draft, verifier, "--modes", "cloud", "--frames", "3") == 2
    assert "the verifier's model takes 1 a question; set frames to 1" in capsys.readouterr().err


def test_the_target_decides_whether_prompts_explain_the_robot(
    tmp_path: Path, bag: Path, tiny_draft: Path, verifier: Verifier
) -> None:
    """The target has a list of objects that it was trained to find; what the draft has says nothing about it."""
    unlisted = tmp_path / "draft"
    shutil.copytree(tiny_draft, unlisted)
    (unlisted / VOCABULARY_FILE).unlink()
    for mode, prompt in (("cloud", "find the red ball"), ("edge", compose("find the red ball", guide=True))):
        assert replay(tmp_path / mode, [bag], unlisted, verifier, "--modes", mode, "--limit", "1") == 0
        (step,) = map(json.loads, (tmp_path / mode / "steps.jsonl").read_text().splitlines())
        assert step["more"]["prompt"] == prompt


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--modes", "warp"), "give one or more of cloud,edge,sd,fsd"),
        (("--rtt-ms", "-1"), "give milliseconds from 0 to 10000"),
        (("--skip", "99"), "no frame was evaluated: skip 99 passes over all "),
        (("--skip", "-1"), "skip -1 is outside 0 to any"),
        (("--link", "string"), "unknown link 'string'; links.json has wifi"),
        (("--drafting", "branches=-1"), "branches -1 is outside 0 to any"),
        (("--profile", "go2_a100_scaled"), "the verifier declares profile 'raw', this replay 'go2_a100_scaled'"),
        (("--instruction", "find the dragon"), "no frame was evaluated: instruction 'find the dragon' names no known"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    tmp_path: Path, bag: Path, tiny_draft: Path, verifier: Verifier, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, str], complaint: str,
) -> None:  # fmt: skip
    try:
        status = replay(tmp_path / "out", [bag], tiny_draft, verifier, *arguments)
    except SystemExit as refused:
        status = int(refused.code or 0)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 2 and complaint in said
