"""Pictures as files of any kind."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def jpeg(pixels: npt.NDArray[np.uint8], mode: str = "", **options: Any) -> bytes:
    """Return pixels as a JPEG of a mode of colours, its own where none is given."""
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, "JPEG", **{"quality": 95, **options})
    return buffer.getvalue()
