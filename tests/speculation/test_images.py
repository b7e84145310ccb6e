from __future__ import annotations

import io
import zlib
from array import array
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from speculation import images
from speculation.frames import MAX_PIXELS, decode_jpeg
from speculation.images import (
    COMPRESSED,
    ENCODINGS,
    RAW,
    check_view,
    file_jpeg,
    file_pixels,
    pixels_jpeg,
    to_jpeg,
    to_pixels,
)
from tests import bags
from tests.models import frame
from vlm_nav_simulation.dataset import encode_jpeg


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "8UC3", "rgba8", "bgra8", "8UC4", "mono8"])
def test_raw_images_of_one_picture_are_one_jpeg_whatever_their_layout(encoding: str) -> None:
    grey = np.repeat(np.arange(0, 64, dtype=np.uint8)[None, :, None], 40, axis=0)
    picture = np.concatenate([grey * 3, grey * 2, grey], axis=2) if encoding != "mono8" else np.repeat(grey, 3, axis=2)
    alpha = np.full((40, 64, 1), 7, np.uint8)
    layouts = {
        "rgb8": picture,
        "bgr8": picture[..., ::-1],
        "8UC3": picture[..., ::-1],
        "rgba8": np.concatenate([picture, alpha], axis=2),
        "bgra8": np.concatenate([picture[..., ::-1], alpha], axis=2),
        "8UC4": np.concatenate([picture[..., ::-1], alpha], axis=2),
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
    pairs = {order: red.reshape(8, 8, 4)[..., order].tobytes() for order in ((0, 1, 2, 3), (1, 0, 3, 2))}
    luma, chroma = np.full((8, 16), 81, np.uint8), np.tile(np.array([90, 240], np.uint8), (4, 8))
    for encoding, data, step in (
        ("yuv422_yuy2", pairs[0, 1, 2, 3], 32),
        ("yuyv", pairs[0, 1, 2, 3], 32),
        ("yuv422", pairs[1, 0, 3, 2], 32),
        ("uyvy", pairs[1, 0, 3, 2], 32),
        ("nv12", luma.tobytes() + chroma.tobytes(), 16),
        ("nv21", luma.tobytes() + chroma[:, ::-1].tobytes(), 16),
    ):
        colour = decode_jpeg(to_jpeg(bags.raw(data, encoding, 8, 16, step), RAW)).mean(axis=(0, 1))
        assert colour[0] > 200 and colour[1] < 60 and colour[2] < 60


@pytest.mark.parametrize("big", [False, True])
def test_the_high_byte_of_16_bits_is_seen_whatever_their_order(big: bool) -> None:
    values = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    rows = np.pad(values.astype(">u2" if big else "<u2").view(np.uint8).reshape(3, -1), ((0, 0), (0, 6)))
    message = bags.raw(rows.tobytes(), "mono16", 3, 4, rows.shape[1])
    message.is_bigendian = int(big)
    assert (to_pixels(message, RAW) == (values >> 8)[..., None]).all()


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_bayer_mosaic_has_the_colours_that_it_was_made_of(order: str) -> None:
    smooth = cv2.resize(frame(4, 4), (64, 48))
    mosaic = np.empty((48, 64), np.uint8)
    for place, channel in enumerate(order):
        row, column = divmod(place, 2)
        mosaic[row::2, column::2] = smooth[row::2, column::2, "rgb".index(channel)]
    seen = to_pixels(bags.raw(mosaic.tobytes(), f"bayer_{order}8", 48, 64, 64), RAW)
    inside = np.abs(seen.astype(int) - smooth)[2:-2, 2:-2]
    assert inside.mean() < 4.0 and np.abs(smooth.astype(int) - smooth[..., ::-1]).mean() > 20.0


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_messages_of_the_live_node_are_read_as_those_of_a_bag(encoding: str) -> None:
    """rclpy holds the bytes of a message in an array, rosbags in numpy."""
    kind, count, _ = ENCODINGS[encoding]
    step = 16 * count * np.dtype(kind).itemsize
    data = np.random.default_rng(1).integers(1, 60, 12 * step if encoding.startswith("nv") else 8 * step, np.uint8)
    recorded = bags.raw(data.tobytes(), encoding, 8, 16, step)
    seen = to_pixels(recorded, RAW)
    recorded.data = array("B", data.tobytes())
    assert (to_pixels(recorded, RAW) == seen).all()
    assert seen.shape == (8, 16, 3) and seen.dtype == np.uint8


def test_pixels_files_and_messages_are_encoded_like_the_simulated_camera() -> None:
    picture = frame(3)
    expected = encode_jpeg(picture)
    png = bytes(cv2.imencode(".png", picture[..., ::-1])[1])
    raw = bags.raw(picture.tobytes(), "rgb8", *picture.shape[:2], 3 * picture.shape[1])
    assert pixels_jpeg(picture) == file_jpeg(png) == to_jpeg(raw, RAW) == expected
    assert file_jpeg(expected) == expected
    assert (to_pixels(bags.compressed(png, 0, "png"), COMPRESSED) == picture).all()
    assert (to_pixels(bags.compressed(expected, 0), COMPRESSED) == decode_jpeg(expected)).all()


def test_what_nothing_on_the_way_would_take_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    for height, width in ((1, images.MAX_SIDE + 1), (MAX_PIXELS // 4096 + 1, 4096), (0, 5)):
        with pytest.raises(ValueError, match=f"an image of {width} x {height} pixels is empty, longer than"):
            pixels_jpeg(np.zeros((height, width, 3), np.uint8))
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 500)
    monkeypatch.setattr(images, "whole_jpeg", None)
    with pytest.raises(ValueError, match=r"an image of \d+ bytes is larger than the 500 that one message may carry"):
        pixels_jpeg(frame(1))


def test_a_small_file_that_claims_many_pixels_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV took 1.5 GB of memory for this PNG of 0.3 MB."""
    png = bytes(cv2.imencode(".png", np.zeros((5000, 5000), np.uint8))[1])
    claims = bytearray(png)
    claims[16:24] = (16_000).to_bytes(4, "big") * 2
    claims[29:33] = zlib.crc32(claims[12:29]).to_bytes(4, "big")

    def never(*_: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(cv2, "imdecode", never)
    with pytest.raises(ValueError, match="an image of 5000 x 5000 pixels is empty, longer than 65500 or more than"):
        file_jpeg(png)
    with pytest.raises(ValueError, match="format 'png', has far more than 16777216 pixels"):
        file_jpeg(bytes(claims), "png")


def grey16(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG of 16 bits a pixel."""
    return bytes(cv2.imencode(".png", pixels[..., 0].astype(np.uint16) << 8)[1])


@pytest.mark.parametrize("size", [(8, 8), (28, 5600), (4000, 300)])
@pytest.mark.parametrize("kind", ["JPEG L", "JPEG CMYK", "PNG L", "PNG P", "PNG RGBA", "PNG 16", "GIF P", "MPO RGB"])
def test_files_of_odd_sizes_and_colours_are_read_as_they_look(size: tuple[int, int], kind: str) -> None:
    form, mode = kind.split()
    ramp = (np.add.outer(np.arange(size[1]), np.arange(size[0])) % 64 * 4).astype(np.uint8)
    picture = np.repeat(ramp[..., None], 3, axis=2)
    file, image = io.BytesIO(), Image.fromarray(picture)
    if mode == "16":
        data = grey16(picture)
    else:
        more: dict[str, Any] = {"save_all": True, "append_images": [image.resize((64, 64))]} if form == "MPO" else {}
        (image.quantize(64) if mode == "P" else image.convert(mode)).save(file, form, **more)
        data = file.getvalue()
    for seen in (decode_jpeg(file_jpeg(data)), file_pixels(data)):
        assert seen.shape == picture.shape and np.abs(seen.astype(int) - picture).mean() < 6.0
    check_view(size[1], size[0])


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
