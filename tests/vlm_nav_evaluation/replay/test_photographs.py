"""Replay of real photographs with the shipped pair: recordings of every kind are read, all modes answer alike."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from spec_vlm_nav.graph import PROJECT
from tests import bags
from tests.datasets import lerobot
from vlm_nav_evaluation.__main__ import main

datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn ships the photographs")
ASKED = "find the green chair"
MODES = ("sd", "full")


def photographs() -> list[Any]:
    """Return two photographs of 640 x 427 pixels and a square part of one: RGB [H, W, 3]."""
    china, flower = (np.asarray(datasets.load_sample_image(f"{name}.jpg"), np.uint8) for name in ("china", "flower"))
    return [china, flower, china[100:324, 200:424]]


def stored(pixels: Any, encoding: str) -> Any:
    """Return a photograph as a camera would publish it in an encoding, but for its colours where it has none."""
    height, width = pixels.shape[:2]
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    data = {
        "8UC3": pixels[..., ::-1],
        "bayer_rggb8": np.where(np.arange(width) % 2 ^ np.arange(height)[:, None] % 2, pixels[..., 1], grey),
    }[encoding]
    rows = np.ascontiguousarray(data).view(np.uint8).reshape(height, -1)
    return bags.raw(rows.tobytes(), encoding, height, width, rows.shape[1])


def replayed(recordings: list[Path], out: Path) -> dict[str, Any]:
    modes = ["--modes", ",".join(MODES), "--check", "--dtype", "float64", "--max-tokens", "6"]
    modes += ["--response-order", "action_first"]
    assert main(["replay", *map(str, recordings), "--out", str(out), "--instruction", ASKED, *modes]) == 0
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.usefixtures("forked_verifiers")
@pytest.mark.skipif(not (PROJECT / "models" / "target").exists(), reason="the embedded pair is not here")
def test_answers_about_photographs_are_the_targets_in_every_mode(tmp_path: Path) -> None:
    china, flower, square = photographs()
    shots = [stored(flower, "8UC3"), stored(square, "bayer_rggb8")]
    raw = bags.write(tmp_path / "raw", [("/camera", bags.stamp_of(index), each) for index, each in enumerate(shots)])
    packed = bags.write(
        tmp_path / "jpeg", [("/camera", bags.START_NS, bags.compressed(bags.jpeg(china), bags.START_NS))]
    )
    recordings = [raw, next(packed.glob("*.mcap"))]
    if find_spec("pyarrow") and find_spec("av"):
        # Videos have sides of even length.
        recordings.append(lerobot(tmp_path / "walk", [("stroll around", [square])]))
    count = len(recordings) + 1
    report = replayed(recordings, tmp_path / "out")
    assert report["left_out"] == [] and report["frames"] == count
    assert report["reference"] == "target"
    for mode in MODES:
        assert report["arms"][mode]["target"]["identical_tokens"] == 1.0
    answers: dict[str, dict[str, list[int]]] = {}
    for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines():
        step = json.loads(line)
        answers.setdefault(step["question"], {})[step["arm"]] = step["tokens"]
    assert len(answers) == count and {len(by_arm) for by_arm in answers.values()} == {len(MODES) + 1}
    for name, by_arm in answers.items():
        first, *others = by_arm.values()
        assert first and all(tokens == first for tokens in others), name
    assert len({str(by_arm[MODES[0]]) for by_arm in answers.values()}) > 1, "photographs differ, and so do answers"
