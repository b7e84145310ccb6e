"""JPEGs become pixels; those that would take too much memory or time are refused in words."""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from speculation import frames
from speculation.frames import (
    MAX_PIXELS,
    MAX_SCANS,
    check_pixels,
    decode_frames,
    decode_jpeg,
    jpeg_size,
    scale_jpeg,
    whole_jpeg,
)
from tests.hostile import mutated, scans_jpeg
from tests.models import frame
from tests.speculation.pictures import jpeg


def decodes(data: bytes) -> bool:
    """Return whether a frame decodes, as the robot's nodes find it out: at an eighth of its size."""
    try:
        decode_jpeg(data, at_least=(1, 1))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("side", "sentence"),
    [(5000, "5000 x 5000 pixels exceeds the limit of 16777216 pixels"), (65000, "65000 x 65000 pixels exceeds")],
)
def test_jpeg_that_claims_too_many_pixels(side: int, sentence: str) -> None:
    data = bytearray(jpeg(frame(0)))
    size = data.index(b"\xff\xc0") + 5
    data[size : size + 4] = side.to_bytes(2, "big") * 2
    with pytest.raises(ValueError, match=sentence):
        decode_jpeg(bytes(data))


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    """Each scan of a small file goes over all pixels: 79 kB took 6 s."""
    plain = scans_jpeg(64, 0)
    own = plain.count(b"\xff\xda")
    most = MAX_SCANS - own
    np.testing.assert_array_equal(decode_jpeg(scans_jpeg(64, most)), decode_jpeg(plain))

    def never() -> float:
        raise AssertionError("it was decoded")

    with pytest.raises(ValueError, match=f"has {MAX_SCANS + 1} scans, the limit is {MAX_SCANS}"):
        decode_jpeg(scans_jpeg(64, most + 1), clock=never)


def test_decoding_ends_when_its_time_is_over() -> None:
    """The clock is looked at every few kB; here every look takes a tenth of a second."""
    now = iter(range(1000))
    data = jpeg(np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match=f"image of {len(data)} bytes takes longer than 1 s to decode"):
        decode_jpeg(data, 1.0, lambda: next(now) / 10.0)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_what_is_decoded_in_parts_is_what_is_decoded_at_once(progressive: bool, mode: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (120, 90, 3), dtype=np.uint8)
    data = jpeg(pixels, mode, progressive=progressive)
    with Image.open(io.BytesIO(data)) as whole:
        np.testing.assert_array_equal(decode_jpeg(data), np.asarray(whole.convert("RGB")))


def test_the_size_is_read_from_the_header_and_no_pixel_decoded() -> None:
    whole = jpeg(np.random.default_rng(3).integers(0, 255, (100, 200, 3), np.uint8))
    header = whole[: len(whole) // 2]
    check_pixels(header, 20_000)
    with pytest.raises(ValueError, match="image of 200 x 100 pixels exceeds the limit of 19999 pixels"):
        check_pixels(header, 19_999)
    for unreadable in (b"", b"jpeg", header[:20]):
        check_pixels(unreadable, 1)
        with pytest.raises(ValueError, match="does not decode as JPEG"):
            decode_jpeg(unreadable)


def test_twelve_bits_a_sample_and_other_formats_are_refused() -> None:
    """A decoder for more than 8 bits takes twice the memory, and formats other than JPEG have limits of their own."""
    plain = jpeg(frame(0))
    at = plain.index(b"\xff\xc0")
    deep = plain[:at] + b"\xff\xc1" + plain[at + 2 : at + 4] + b"\x0c" + plain[at + 5 :]
    png = io.BytesIO()
    Image.fromarray(frame(0)).save(png, "PNG")
    for data in (deep, png.getvalue()):
        with pytest.raises(ValueError, match="does not decode as JPEG"):
            decode_jpeg(data)


def test_the_largest_frame_takes_bounded_memory() -> None:
    """A progressive one keeps all coefficients: here 4096 x 4096 of one colour, 4:4:4, in 400 kB."""
    side = math.isqrt(MAX_PIXELS)
    data = jpeg(np.full((side, side, 3), (9, 99, 199), np.uint8), progressive=True, subsampling=0)
    code = """
import sys
from typing import Any
from pathlib import Path
from speculation.frames import decode_jpeg
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
data = sys.stdin.buffer.read()
before = peak()
print(decode_jpeg(data, 60.0).nbytes, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    size, grown = map(int, done.stdout.split())
    assert size == 3 * MAX_PIXELS
    assert grown * 1024 < 16 * MAX_PIXELS


def test_a_broken_jpeg_is_refused_in_words_whatever_is_broken() -> None:
    rng, exif = random.Random(5), Image.Exif()
    exif[0x0112], exif[0x9286] = 6, "x" * 100
    pixels = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    good = [jpeg(pixels), jpeg(pixels[:33, :17], progressive=True), jpeg(pixels[:5, :3], exif=exif)]
    refused = 0
    for _ in range(600):
        data = mutated(good, rng)
        decodes(data)
        try:
            decode_jpeg(data)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 600


def smooth(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return a picture without fine detail, as a camera's mostly is, of which no scaling loses much."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows * 6.0 / height + channel) * np.cos(columns * 5.0 / width) for channel in range(3)]
    return (127.5 + 120.0 * np.stack(waves, axis=-1)).astype(np.uint8)


def test_several_frames_share_the_limits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = jpeg(frame(0)), jpeg(smooth(100, 200))
    pictures = decode_frames((one, other))
    assert [picture.shape for picture in pictures] == [(56, 56, 3), (100, 200, 3)]
    np.testing.assert_array_equal(pictures[0], decode_frames(one)[0])
    check_pixels((one, other, b"unreadable"), 56 * 56 + 20_000)
    with pytest.raises(ValueError, match="images of 56 x 56 and 200 x 100 pixels together exceed the limit of 23135"):
        check_pixels((one, other), 56 * 56 + 19_999)
    monkeypatch.setattr(frames, "MAX_PIXELS", 20_000)
    with pytest.raises(ValueError, match="together exceed the limit of 20000 pixels"):
        decode_frames((one, other))
    left: list[float] = []
    monkeypatch.setattr(frames, "decode_jpeg", lambda data, limit_s: left.append(limit_s))
    decode_frames((one, one))
    assert left[0] == frames.DECODE_LIMIT_S > left[1] > 0.0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_transformers_turns_it(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(smooth(40, 64), exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decode_jpeg(data), expected)
    assert jpeg_size(data) == expected.shape[:2]
    small = scale_jpeg(data, expected.shape[0] // 2, expected.shape[1] // 2)
    assert jpeg_size(small) == (expected.shape[0] // 2, expected.shape[1] // 2)
    assert np.abs(decode_jpeg(small).astype(int) - expected[::2, ::2]).mean() < 12.0


def test_an_orientation_that_is_written_as_text_turns_nothing_in_header_and_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg(smooth(40, 64), exif=exif)
    number, text = bytes.fromhex("011200030000000100060000"), bytes.fromhex("01120002000000023600") + b"\0\0"
    assert data.count(number) == 1 and jpeg_size(data) == (64, 40)
    odd = data.replace(number, text)
    assert jpeg_size(odd) == decode_jpeg(odd).shape[:2] == (40, 64)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}])
def test_a_jpeg_without_its_end_is_read_and_one_that_was_cut_is_not(options: dict[str, Any]) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    data = jpeg(pixels, **options)
    np.testing.assert_array_equal(decode_jpeg(data[:-2]), decode_jpeg(data))
    assert decodes(data[:-2]) and decodes(data + bytes(20))
    assert whole_jpeg(data[:-2]) == whole_jpeg(data) == data
    for kept in (0.5, 0.8, 0.97):
        cut = data[: int(len(data) * kept)]
        assert not decodes(cut)
        with pytest.raises(ValueError, match="does not decode"):
            decode_jpeg(cut)
        with pytest.raises(ValueError, match="does not decode"):
            whole_jpeg(cut)
