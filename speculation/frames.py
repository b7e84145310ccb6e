"""Decodes camera frames, JPEG -> RGB pixels, with bounds on what an encoder may ask of its reader."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from speculation.wire import MAX_FRAME_PIXELS, Jpegs, frames_of

MAX_PIXELS = MAX_FRAME_PIXELS
"""Largest frame that is decoded: a few kilobytes of JPEG can claim gigabytes of pixels."""
MAX_SCANS = 20
"""Scans of one JPEG: encoders write up to 10, and a small file with thousands of them takes minutes to decode."""
DECODE_LIMIT_S = 1.0
SCALED_QUALITY = 90
"""Quality of a frame that is scaled before it is sent."""
_JPEG_PART = 1 << 12
"""Bytes of a JPEG that are decoded between two looks at the clock."""

_END = b"\xff\xd9"
_PADDING = 64
"""Bytes behind the end of a JPEG that a driver may have filled up; zeros may be more."""
_MORE = bytes(range(1, 65)) * 4
_ORIENTATION = 0x0112
"""EXIF tag."""
_ON_ITS_SIDE = (5, 6, 7, 8)

Frame = npt.NDArray[np.uint8]
"""RGB [H, W, 3]."""

# Whoever sends a frame with strange metadata writes into no log of ours. Once for all: threads share the filters.
warnings.filterwarnings("ignore", module=r"PIL\.")


class _TimedBytes(io.BytesIO):
    """A file in memory that refuses to be read on after `limit_s` seconds, so that its decoder ends."""

    def __init__(self, data: bytes, limit_s: float, clock: Callable[[], float]) -> None:
        super().__init__(data)
        self._size, self._limit_s, self._clock = len(data), limit_s, clock
        self._began = clock()

    def read(self, size: int | None = -1, /) -> bytes:
        if self._clock() - self._began > self._limit_s:
            raise ValueError(f"image of {self._size} bytes takes longer than {self._limit_s:g} s to decode")
        return super().read(size)


def _open(file: io.BytesIO) -> JpegImageFile:
    """Read a JPEG's header, whatever size it claims. Raises OSError, SyntaxError or ValueError for anything else."""
    return JpegImageFile(file)


def turned(image: Image.Image) -> Image.Image:
    """Turn a picture as its EXIF orientation says that it is to be seen, as transformers' processors do, and return it.

    Metadata that cannot be read says nothing.
    """
    if _orientation(image) != 1:
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _orientation(image: Image.Image) -> int:
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # what strangers write there makes the parser raise anything
        return 1
    return int(found) if found in range(1, 9) else 1


def _ended(data: bytes) -> bytes:
    """Return a JPEG with the marker of its end, which many cameras leave out.

    One whose picture is not all there stays as it is, so that its decoder refuses it: bytes before the end change what
    is seen only where pixels are still to come.
    """
    if _END in data.rstrip(b"\0")[-_PADDING:]:
        return data
    decoded = []
    for more in (b"", _MORE):
        try:
            with _open(_TimedBytes(data + more + _END, DECODE_LIMIT_S, time.monotonic)) as image:
                if image.width * image.height > MAX_PIXELS:
                    return data
                if not image.info.get("progressive"):
                    # Every block has its mean first, so that those show what is missing, for a part of the time.
                    image.draft("RGB", (1, 1))
                decoded.append(image.convert("RGB").tobytes())
        except (OSError, SyntaxError, ValueError):
            return data
    return data + _END if decoded[0] == decoded[1] else data


def check_pixels(jpeg: Jpegs, most: int) -> None:
    """Check the size of a question's frames, which their headers have, against a limit; no pixel is decoded.

    Raises ValueError for more than `most` pixels, of all frames together. What has no header to be read is for
    `decode_jpeg` to refuse.
    """
    sizes = []
    for data in frames_of(jpeg):
        with contextlib.suppress(ValueError):
            sizes.append(jpeg_size(data))
    if sum(height * width for height, width in sizes) > most:
        shown = " and ".join(f"{width} x {height}" for height, width in sizes)
        images, exceed = ("image", "exceeds") if len(sizes) == 1 else ("images", "together exceed")
        raise ValueError(f"{images} of {shown} pixels {exceed} the limit of {most} pixels")


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the height and width of a JPEG as it is seen, by its header; no pixel is decoded.

    Raises ValueError for anything else.
    """
    try:
        image = _open(io.BytesIO(data))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"image of {len(data)} bytes does not decode as JPEG: {error}") from None
    return (image.width, image.height) if _orientation(image) in _ON_ITS_SIDE else (image.height, image.width)


def scale_jpeg(data: bytes, height: int, width: int) -> bytes:
    """Return a JPEG's picture as a smaller JPEG of `height` x `width` pixels.

    It is decoded at a fraction of its size where that is still twice the wanted one, which is several times faster.
    Raises ValueError as `decode_jpeg`.
    """
    image = Image.fromarray(decode_jpeg(data, at_least=(2 * height, 2 * width)))
    file = io.BytesIO()
    image.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=SCALED_QUALITY, subsampling=0)
    return file.getvalue()


def decode_jpeg(
    data: bytes,
    limit_s: float = DECODE_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    at_least: tuple[int, int] | None = None,
) -> Frame:
    """Return the RGB pixels [H, W, 3] of a JPEG, turned as its EXIF orientation says.

    `at_least`: a height and width; the picture comes at a half, a quarter or an eighth of its size, where that is as
    large. (1, 1) finds out whether a frame decodes, for a small part of what a whole one costs.

    Raises ValueError, in one sentence, for anything else, for more than MAX_PIXELS pixels or MAX_SCANS scans, and when
    decoding takes longer than `limit_s` seconds on `clock`.
    """
    _check_scans(data)
    return _decoded(_ended(data), limit_s, clock, at_least)


def whole_jpeg(data: bytes) -> bytes:
    """Return a JPEG that decodes, with the marker of its end. Raises ValueError as `decode_jpeg` for any other."""
    _check_scans(data)
    whole = _ended(data)
    _decoded(whole, DECODE_LIMIT_S, time.monotonic, (1, 1))
    return whole


def _check_scans(data: bytes) -> None:
    # Each scan has this marker, and coded data never contains it; metadata may, so that the count is an upper bound.
    scans = data.count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise ValueError(f"image of {len(data)} bytes has {scans} scans, the limit is {MAX_SCANS}")


def _decoded(data: bytes, limit_s: float, clock: Callable[[], float], at_least: tuple[int, int] | None) -> Frame:
    try:
        image = _open(_TimedBytes(data, limit_s, clock))
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"image of {image.width} x {image.height} pixels exceeds the limit of {MAX_PIXELS} pixels")
        if at_least is not None:
            image.draft("RGB", at_least if _orientation(image) in _ON_ITS_SIDE else at_least[::-1])
        image.decodermaxblock = _JPEG_PART
        return np.asarray(turned(image.convert("RGB")))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"image of {len(data)} bytes does not decode as JPEG: {error}") from None


def decode_frames(jpeg: Jpegs) -> list[Frame]:
    """Return the RGB pixels [H, W, 3] of a question's frames, the oldest first.

    Raises ValueError as `decode_jpeg`, whose limits of pixels and time are for all of them together.
    """
    frames = frames_of(jpeg)
    if len(frames) > 1:
        check_pixels(jpeg, MAX_PIXELS)
    left, found = DECODE_LIMIT_S, []
    for data in frames:
        began = time.monotonic()
        found.append(decode_jpeg(data, max(0.0, left)))
        left -= time.monotonic() - began
    return found
