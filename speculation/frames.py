"""Camera frames: JPEG -> RGB pixels, with bounds on what an encoder may ask of its reader."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

MAX_PIXELS = 1 << 24
"""Largest frame that is decoded: a few kilobytes of JPEG can claim gigabytes of pixels."""
MAX_SCANS = 20
"""Scans of one JPEG: encoders write up to 10, and a small file with thousands of them takes minutes to decode."""
DECODE_LIMIT_S = 1.0
_JPEG_PART = 1 << 12
"""Bytes of a JPEG that are decoded between two looks at the clock."""

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


def _open(file: io.BytesIO) -> ImageFile.ImageFile:
    """Read a JPEG's header. Raises OSError, SyntaxError, ValueError or DecompressionBombError for anything else."""
    return Image.open(file, formats=["JPEG"])


def is_jpeg(data: bytes) -> bool:
    """Return whether a frame decodes, at an eighth of its size: a small part of what a whole one costs."""
    try:
        with _open(_TimedBytes(data, DECODE_LIMIT_S, time.monotonic)) as image:
            if image.width * image.height > MAX_PIXELS:
                return False
            image.draft("L", (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False
    return True


def check_pixels(data: bytes, most: int) -> None:
    """Check a JPEG's size, which its header has, against a limit; no pixel is decoded.

    Raises ValueError for more than `most` pixels. What has no header to be read is for `decode_jpeg` to refuse.
    """
    try:
        image = _open(io.BytesIO(data))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return
    if image.width * image.height > most:
        raise ValueError(f"image of {image.width} x {image.height} pixels exceeds the limit of {most} pixels")


def decode_jpeg(data: bytes, limit_s: float = DECODE_LIMIT_S, clock: Callable[[], float] = time.monotonic) -> Frame:
    """Return the RGB pixels [H, W, 3] of a JPEG.

    Raises ValueError, in one sentence, for anything else, for more than MAX_PIXELS pixels or MAX_SCANS scans, and when
    decoding takes longer than `limit_s` seconds on `clock`.
    """
    # Each scan has this marker, and coded data never contains it; metadata may, so that the count is an upper bound.
    scans = data.count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise ValueError(f"image of {len(data)} bytes has {scans} scans, the limit is {MAX_SCANS}")
    try:
        image = _open(_TimedBytes(data, limit_s, clock))
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"image of {image.width} x {image.height} pixels exceeds the limit of {MAX_PIXELS} pixels")
        image.decodermaxblock = _JPEG_PART
        return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"image of {len(data)} bytes does not decode as JPEG: {error}") from None
