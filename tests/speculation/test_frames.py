"""JPEGs become pixels; those that would take too much memory or time are refused in words."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from speculation.frames import MAX_SCANS, decode_jpeg, is_jpeg
from tests.hostile import scans_jpeg
from tests.models import frame


def jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("side", "sentence"),
    [(5000, "5000 x 5000 pixels exceeds the limit of 16777216 pixels"), (65000, "does not decode as JPEG")],
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
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", progressive=progressive)
    with Image.open(buffer) as whole:
        np.testing.assert_array_equal(decode_jpeg(buffer.getvalue()), np.asarray(whole.convert("RGB")))


@pytest.mark.parametrize("size", [(224, 224), (1280, 720)])
def test_what_decodes_is_a_frame(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(3).integers(0, 255, (size[1], size[0], 3), np.uint8)
    assert is_jpeg(jpeg(pixels))


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", bytes(range(256)), b"\xff\xd8" + bytes(1000)])
def test_what_does_not_decode_is_none(data: bytes) -> None:
    assert not is_jpeg(data)
