"""Images of another node: the newest counts, in any encoding, and a bad one is a bad frame."""

from __future__ import annotations

import threading
from typing import Any

import cv2
import numpy as np
import pytest

from spec_vlm_nav.camera import SourceSettings
from spec_vlm_nav.cameras import source_of
from spec_vlm_nav.cameras import topic as source_file
from spec_vlm_nav.cameras.topic import ImageTopic
from speculation.images import COMPRESSED, RAW
from tests import bags
from tests.cameras import assert_is_frame, first, frame


def message(number: int, encoding: str = "8UC3") -> Any:
    pixels = frame(number) if encoding == "8UC3" else cv2.cvtColor(frame(number), cv2.COLOR_BGR2GRAY).astype("u2") << 8
    height, width = pixels.shape[:2]
    rows = pixels.view(np.uint8).reshape(height, -1)
    return bags.raw(rows.tobytes(), encoding, height, width, rows.shape[1])


def test_settings_choose_topic_and_type() -> None:
    found = source_of(SourceSettings(source="topic:/front/image_raw"), 10.0, lambda _: None)
    assert isinstance(found, ImageTopic) and (found.topic, found.kind) == ("/front/image_raw", RAW)
    assert ImageTopic("topic:front/compressed").kind == COMPRESSED
    for source in ("topic:", "topic: / "):
        with pytest.raises(ValueError, match="names no topic; give for example topic:/front/image_raw"):
            ImageTopic(source)


def test_the_newest_image_counts_and_none_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_file, "GRAB_S", 0.02)
    source = ImageTopic("topic:/front/image_raw")
    source.received(message(0))
    source.open()
    assert not source.grab(), "what came before it was opened is forgotten"
    for number in range(3):
        source.received(message(number))
    assert source.grab()
    assert (source.retrieve() == frame(2)).all() and not source.grab()
    threading.Timer(0.05, source.received, [message(1, "mono16")]).start()
    monkeypatch.setattr(source_file, "GRAB_S", 10.0)
    grey = first(source)
    assert grey.shape == frame(1).shape and (grey[..., 0] == grey[..., 2]).all()


def test_a_png_is_a_frame_and_a_bad_image_is_one_sentence() -> None:
    source = ImageTopic("topic:/front/compressed")
    source.received(bags.compressed(bytes(cv2.imencode(".png", frame(0))[1]), 0, "png"))
    assert source.grab()
    assert_is_frame(source.retrieve())
    source.received(bags.compressed(b"nothing", 0, "h264"))
    assert source.grab()
    with pytest.raises(ValueError, match="format 'h264', does not decode"):
        source.retrieve()
