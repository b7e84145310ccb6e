"""Image messages of any camera as the JPEG that a robot sends up. No ROS: messages are duck-typed."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from simulation.camera import Image
from simulation.dataset import encode_jpeg
from speculation.frames import decode_jpeg
from speculation.wire import MAX_IMAGE_BYTES

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
ENCODINGS: dict[str, tuple[int, int | None]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
    "8UC1": (1, cv2.COLOR_GRAY2RGB),
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
}
"""Encodings of raw images: bytes per pixel, and how OpenCV makes RGB of them."""
JPEG_START = b"\xff\xd8"


def to_jpeg(message: Any, kind: str) -> bytes:
    """Return the JPEG of an image message, as a robot would send it up.

    A JPEG goes through as it is. Anything else is encoded like the simulated camera's frames: every mode and every
    model gets these same bytes, so nothing is compared across encodings. Raises ValueError for what is no image.
    """
    if kind == COMPRESSED:
        data = bytes(message.data)
        jpeg = data if data.startswith(JPEG_START) else encode_jpeg(_decompress(data, str(message.format)))
    else:
        jpeg = encode_jpeg(_pixels(message))
    if len(jpeg) > MAX_IMAGE_BYTES:
        raise ValueError(
            f"an image of {len(jpeg)} bytes is larger than the {MAX_IMAGE_BYTES} that one message may carry"
        )
    decode_jpeg(jpeg)
    return jpeg


def _decompress(data: bytes, declared: str) -> Image:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if pixels is None:
        raise ValueError(f"an image of {len(data)} bytes, format {declared!r}, does not decode")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _pixels(message: Any) -> Image:
    """Return the RGB pixels [H, W, 3] of a raw image; rows may be padded."""
    encoding, height, width, step = str(message.encoding), int(message.height), int(message.width), int(message.step)
    if encoding not in ENCODINGS:
        raise ValueError(f"a raw image's encoding is {encoding!r}; known are {', '.join(ENCODINGS)}")
    depth, conversion = ENCODINGS[encoding]
    if not (height > 0 and width > 0 and step >= width * depth and len(message.data) >= step * height):
        raise ValueError(
            f"a raw image claims {width} x {height} pixels of {encoding} in rows of {step} bytes but holds "
            f"{len(message.data)} bytes"
        )
    rows = np.asarray(message.data[: step * height], np.uint8).reshape(height, step)
    pixels = np.ascontiguousarray(rows[:, : width * depth]).reshape(height, width, depth)
    return pixels if conversion is None else np.asarray(cv2.cvtColor(pixels, conversion), np.uint8)
