"""Self-contained pages: nothing is loaded from elsewhere, and text stays text."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from evaluation import page


def test_text_is_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script> & \"so\""
    parts = [
        page.section(evil, page.table([[evil, "1"]], [evil, "n"]), note=evil),
        page.card(None, evil, evil, evil),
        page.link(evil, evil),
        page.paragraph(evil),
        page.preformatted(evil),
        page.picture("a.png", evil),
        page.bullets([evil]),
    ]
    text = page.write_page(tmp_path / "deep" / "page.html", evil, parts).read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert 'name="viewport"' in text and "http" not in text


def test_pictures_travel_in_the_page() -> None:
    red = Figure(figsize=(1, 1), layout="constrained")
    red.add_subplot()
    data = page.png(red)
    assert page.image(data, "red").startswith('<img src="data:image/png;base64,')
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None
    assert page.picture("red.png", "red") == '<img src="red.png" alt="red">'
    with pytest.raises(ValueError, match="'it' is neither PNG, JPEG nor GIF"):
        page.image(b"no picture", "it")


def test_large_frames_shrink_and_small_ones_stay_as_they_are() -> None:
    def frame(width: int) -> bytes:
        return cv2.imencode(".jpg", np.full((width // 2, width, 3), 90, np.uint8))[1].tobytes()

    assert page.thumbnail(frame(200)) == frame(200)
    small = page.thumbnail(frame(1280))
    assert small is not None
    assert cv2.imdecode(np.frombuffer(small, np.uint8), cv2.IMREAD_COLOR).shape == (180, 360, 3)
    assert page.thumbnail(b"no picture") is None and page.thumbnail(b"") is None
    assert "no frame" in page.card(b"no picture", "title", "text")
