"""The benchmark of scaled frames: what it scales is smaller, has as many tokens and costs the verifier less."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import frame_scaling
from benchmarks.frame_scaling import figures, main, shown
from speculation.frames import jpeg_size
from speculation.links import load_link
from speculation.vlm.load import Vlm


def test_a_picture_becomes_what_a_camera_of_any_shape_would_give() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    for size in ((240, 320), (300, 200), (500, 700)):
        assert jpeg_size(shown(picture, *size, 0)) == size
    assert shown(picture, 240, 320, 0) == shown(picture, 240, 320, 0) != shown(picture, 240, 320, 1)


def test_scaled_frames_have_as_many_tokens_in_fewer_bytes(target: Vlm) -> None:
    frames = [shown(np.full((400, 400, 3), level, dtype=np.uint8), 360, 640, level) for level in (90, 160)]
    whole, scaled = (figures(target.processor, frames, each, 2) for each in (False, True))
    assert scaled["tokens"] == whole["tokens"] == 2.0
    assert scaled["bytes"] < whole["bytes"] / 10 and whole["bytes"] == np.mean([len(frame) for frame in frames])
    way = load_link("lte").up
    assert whole["lte_s"] == pytest.approx(round(whole["bytes"]) * 8 / way.rate_bps + way.delay_s + way.jitter_s / 2)
    assert whole["robot_s"] == whole["verifier_s"] and scaled["robot_s"] > scaled["verifier_s"] > 0.0


def test_the_command_prints_every_size(
    tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (90, 20, 200)).save(buffer, "PNG")
    (tmp_path / "picture.png").write_bytes(buffer.getvalue())
    monkeypatch.setattr(frame_scaling, "SIZES", {"small": (120, 160)})
    common = ["--target-model", str(tiny_target), "--repeats", "1"]
    assert main([*common, "--image", str(tmp_path / "picture.png")]) == 0
    said = capsys.readouterr().out
    assert "small, whole" in said and "small, scaled" in said
    assert main([*common, "--image", str(tmp_path / "no.png")]) == 2
    assert "no.png is no picture that can be read" in capsys.readouterr().err
