from __future__ import annotations

import cv2
import numpy as np
import pytest

from spec_vlm_nav.images import COMPRESSED, RAW, to_jpeg
from speculation.frames import decode_jpeg
from tests import bags
from tests.models import frame


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_raw_images_of_one_picture_are_one_jpeg_whatever_their_layout(encoding: str) -> None:
    grey = np.repeat(np.arange(0, 64, dtype=np.uint8)[None, :, None], 40, axis=0)
    picture = np.concatenate([grey * 3, grey * 2, grey], axis=2) if encoding != "mono8" else np.repeat(grey, 3, axis=2)
    alpha = np.full((40, 64, 1), 7, np.uint8)
    layouts = {
        "rgb8": picture,
        "bgr8": picture[..., ::-1],
        "rgba8": np.concatenate([picture, alpha], axis=2),
        "bgra8": np.concatenate([picture[..., ::-1], alpha], axis=2),
        "mono8": grey,
    }
    pixels = layouts[encoding].reshape(40, -1)
    padded = np.pad(pixels, ((0, 0), (0, 5)), constant_values=255)
    tight = to_jpeg(bags.raw(pixels.tobytes(), encoding, 40, 64, pixels.shape[1]), RAW)
    loose = to_jpeg(bags.raw(padded.tobytes(), encoding, 40, 64, padded.shape[1]), RAW)
    assert tight == loose
    seen = decode_jpeg(tight)
    assert seen.shape == (40, 64, 3) and np.abs(seen.astype(int) - picture).mean() < 3.0


def test_yuv_is_colour_too() -> None:
    red = np.tile(np.array([81, 90, 81, 240], np.uint8), (8, 8))  # Y U Y V
    for encoding, order in (("yuv422_yuy2", [0, 1, 2, 3]), ("yuv422", [1, 0, 3, 2])):
        data = red.reshape(8, 8, 4)[..., order].tobytes()
        colour = decode_jpeg(to_jpeg(bags.raw(data, encoding, 8, 16, 32), RAW)).mean(axis=(0, 1))
        assert colour[0] > 200 and colour[1] < 60 and colour[2] < 60


def test_a_jpeg_goes_through_and_a_png_is_encoded() -> None:
    data = bags.jpeg(frame(1))
    assert to_jpeg(bags.compressed(data, 0), COMPRESSED) == data
    smooth = cv2.resize(frame(2, 4), (56, 56))
    png = bytes(cv2.imencode(".png", smooth[..., ::-1])[1])
    seen = decode_jpeg(to_jpeg(bags.compressed(png, 0, "rgb8; png compressed"), COMPRESSED))
    assert np.abs(seen.astype(int) - smooth).mean() < 6.0


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (bags.raw(bytes(12), "16UC1", 2, 3, 6), "encoding is '16UC1'; known are rgb8"),
        (bags.raw(bytes(11), "rgb8", 2, 2, 6), "claims 2 x 2 pixels of rgb8 in rows of 6 bytes but holds 11 bytes"),
        (bags.raw(bytes(12), "rgb8", 2, 2, 5), "in rows of 5 bytes"),
        (bags.compressed(b"\xff\xd8 no image", 0), "does not decode as JPEG"),
        (bags.compressed(b"no image", 0, "h264"), "format 'h264', does not decode"),
        (bags.compressed(b"", 0, ""), "an image of 0 bytes"),
    ],
)
def test_an_image_that_is_none_is_one_sentence(message: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        to_jpeg(message, message.__msgtype__)  # type: ignore[attr-defined]
