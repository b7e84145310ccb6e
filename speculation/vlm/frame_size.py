"""Smaller JPEGs of which the size is made that a frame is resized to, by Qwen2-VL's `smart_resize` of transformers.

By that rule sides are multiples of a unit, and a frame has a least to a most number of pixels; where the most is less
than four times the least it may make it larger. It refuses a frame that is more than 200 times longer than wide or the
reverse.
"""

from __future__ import annotations

import functools
import math

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from speculation.frames import jpeg_size, scale_jpeg
from speculation.wire import MAX_FRAMES, Jpegs, frames_of, jpeg_of


def reduced(jpeg: Jpegs, unit: int, least: int, most: int) -> Jpegs:
    """Return smaller frames of which `smart_resize` with these values makes the size that it would make of these.

    A frame of that size, one that would be enlarged or take more bytes, and one that cannot be read stay as they are.
    """
    return jpeg_of([_reduced(frame, unit, least, most) for frame in frames_of(jpeg)])


def _enough(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Return the smallest size, of those tried, that `smart_resize` resizes as it resizes this one."""
    wanted: tuple[int, int] = smart_resize(height, width, unit, least, most)
    if smart_resize(*wanted, unit, least, most) == wanted:
        return wanted
    # Where least and most are close together the processor would enlarge its own result; of a picture with a few
    # pixels more than `most`, and of the same proportions, it makes the same.
    scale = math.sqrt(most / (height * width))
    for percent in range(100, 151, 2):
        size = math.ceil(height * scale * percent / 100), math.ceil(width * scale * percent / 100)
        if size[0] < height and size[1] < width and smart_resize(*size, unit, least, most) == wanted:
            return size
    return height, width


@functools.lru_cache(maxsize=MAX_FRAMES)  # a question may hold frames of the one before
def _reduced(jpeg: bytes, unit: int, least: int, most: int) -> bytes:
    try:
        height, width = jpeg_size(jpeg)
        size = _enough(height, width, unit, least, most)
        larger = size[0] > height or size[1] > width
        return jpeg if larger or size == (height, width) else min(scale_jpeg(jpeg, *size), jpeg, key=len)
    except ValueError:
        return jpeg
