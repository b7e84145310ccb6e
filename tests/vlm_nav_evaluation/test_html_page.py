"""Self-contained pages: nothing is loaded from elsewhere, and text stays text."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import cv2
import numpy as np

from vlm_nav_evaluation.html_page import Section, embedded, thumbnail, write_page


def test_text_is_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script> & \"so\""
    section = Section(
        evil, evil, evil, [("a.png", evil)], [[evil]], [("", evil, evil, evil)], [evil], [("b", evil, evil)]
    )
    text = write_page(tmp_path / "deep" / "page.html", evil, [section], [evil]).read_text()
    assert "<script" not in text and text.count("&lt;script&gt;") == 14
    assert 'alt="&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;so&#34;"' in text
    assert 'name="viewport"' in text and "http" not in text


def test_large_frames_shrink_and_small_ones_stay_as_they_are(tmp_path: Path) -> None:
    def frame(width: int) -> bytes:
        return cv2.imencode(".jpg", np.full((width // 2, width, 3), 90, np.uint8))[1].tobytes()

    assert thumbnail(frame(200)) == embedded(frame(200))
    small = np.frombuffer(b64decode(thumbnail(frame(1280)).partition(",")[2]), np.uint8)
    assert cv2.imdecode(small, cv2.IMREAD_COLOR).shape == (180, 360, 3)
    assert thumbnail(frame(1280)[:-2]) == thumbnail(frame(1280)), "its camera leaves out the marker of its end"
    assert thumbnail(b"no image") == thumbnail(b"") == thumbnail(None) == thumbnail(frame(200)[:300]) == ""
    card = Section("cards", cards=[(thumbnail(b"no image"), "title", "text", "")])
    assert "no frame" in write_page(tmp_path / "page.html", "title", [card]).read_text()
