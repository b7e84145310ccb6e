"""The command line: plots of a scene, and one sentence for bad input."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from vlm_nav_simulation.__main__ import main


def test_look_writes_readable_sheets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["look", "--seed", "4", "--difficulty", "easy", "--target", "silver bottle", "--layout", "two_rooms"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "silver bottle" in printed
    assert "two_rooms 4 (easy)" in printed
    image = cv2.imread(str(tmp_path / "two_rooms-easy-4.png"))
    assert image is not None
    assert min(image.shape[:2]) > 700
    assert image.std() > 30


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seed", "-1"], "seed -1 is outside"),
        (["--layout", "house"], "unknown layout 'house'; known are room, two_rooms, hallway"),
        (["--difficulty", "hell"], "unknown difficulty 'hell'"),
        (["--target", "pink bottle"], "target colour 'pink' is not one of"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["look", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("vlm_nav_simulation look: ") and sentence in error
    assert "\n" not in error


def test_an_unknown_camera_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEC_VLM_NAV_CAMERA", "film")
    assert main(["look", "--out", str(tmp_path)]) == 2
    assert "SPEC_VLM_NAV_CAMERA='film' is no camera" in capsys.readouterr().err
