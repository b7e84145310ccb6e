"""Files, devices and addresses through cv2.VideoCapture."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from spec_vlm_nav.cameras.device import Device
from tests.cameras import HEIGHT, WIDTH, assert_is_frame, first, write_film


def test_a_film_plays_over_and_over(tmp_path: Path) -> None:
    frames = 6
    source = Device(str(write_film(tmp_path / "film.mp4", frames))).open()
    for _ in range(2 * frames + 1):
        assert source.grab()
        assert_is_frame(source.retrieve())
    source.close()


def test_a_film_plays_at_its_own_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_vlm_nav.cameras import device

    now = [50.0]
    # A module of its own in its place: threads that others have left running sleep, too.
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(device, "time", clock)
    source = Device(str(write_film(tmp_path / "film.mp4", 12))).open()
    for _ in range(11):
        source.grab()
    assert now[0] - 50.0 == pytest.approx(10 / 15, abs=0.01)
    source.close()


def test_an_address_is_opened(tmp_path: Path) -> None:
    source = Device(f"file://{write_film(tmp_path / 'film.mp4')}").open()
    assert first(source).shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(OSError, match="no more frames"):
        while source.grab():
            pass
    source.close()


@pytest.mark.parametrize("missing", ["97", "/nowhere/film.mp4"])
def test_what_does_not_exist_is_named(missing: str) -> None:
    with pytest.raises(OSError, match=f"source '{missing}'.* does not exist; device numbers here"):
        Device(missing)


def test_what_is_no_film_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_text("not a film", encoding="utf-8")
    with pytest.raises(OSError, match="cannot open"):
        Device(str(path)).open()
