"""Pictures of any camera as the JPEG that a robot sends up: ROS image messages, image files, pixels.

No ROS: messages are duck-typed, so that the live node, recorded bags and training data go through the same code.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from speculation.frames import MAX_PIXELS, Frame, decode_jpeg, jpeg_size, whole_jpeg
from speculation.wire import MAX_IMAGE_BYTES

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
JPEG_START = b"\xff\xd8"
JPEG_QUALITY = 90
"""Quality of the simulated camera's frames, too."""
MAX_SIDE = 65_500
"""Pixels: libjpeg encodes no longer side."""
MIN_VIEW_SIDE, MAX_VIEW_ASPECT = 8, 200
"""A robot walks on pictures of so many pixels a side, no more than so many times longer than wide or the reverse: a
camera's settings are wrong where it sends others, and models refuse a longer one."""

_Pixels = npt.NDArray[Any]
_BAYER = {
    "rggb": cv2.COLOR_BayerRGGB2RGB,
    "bggr": cv2.COLOR_BayerBGGR2RGB,
    "gbrg": cv2.COLOR_BayerGBRG2RGB,
    "grbg": cv2.COLOR_BayerGRBG2RGB,
}
"""Codes of OpenCV by ROS' name: the colours of two pixels of the first row, then of the second."""


def _colour(code: int) -> Callable[[_Pixels], _Pixels]:
    return lambda pixels: np.asarray(cv2.cvtColor(pixels, code))


def _unchanged(pixels: _Pixels) -> _Pixels:
    return pixels


def _high_byte(pixels: _Pixels) -> _Pixels:
    """Return 16-bit values as 8-bit ones: the whole range is scaled, so that frames stay comparable."""
    return (pixels >> 8).astype(np.uint8)


_GREY = _colour(cv2.COLOR_GRAY2RGB)
ENCODINGS: dict[str, tuple[str, int, Callable[[_Pixels], _Pixels]]] = {
    "rgb8": ("u1", 3, _unchanged),
    "bgr8": ("u1", 3, _colour(cv2.COLOR_BGR2RGB)),
    "8UC3": ("u1", 3, _colour(cv2.COLOR_BGR2RGB)),
    "rgba8": ("u1", 4, _colour(cv2.COLOR_RGBA2RGB)),
    "bgra8": ("u1", 4, _colour(cv2.COLOR_BGRA2RGB)),
    "8UC4": ("u1", 4, _colour(cv2.COLOR_BGRA2RGB)),
    "mono8": ("u1", 1, _GREY),
    "8UC1": ("u1", 1, _GREY),
    "mono16": ("u2", 1, lambda pixels: _GREY(_high_byte(pixels))),
    # ROS names the first of each pair today, and named the second before.
    **dict.fromkeys(("uyvy", "yuv422"), ("u1", 2, _colour(cv2.COLOR_YUV2RGB_UYVY))),
    **dict.fromkeys(("yuyv", "yuv422_yuy2"), ("u1", 2, _colour(cv2.COLOR_YUV2RGB_YUY2))),
    "nv12": ("u1", 1, _colour(cv2.COLOR_YUV2RGB_NV12)),
    "nv21": ("u1", 1, _colour(cv2.COLOR_YUV2RGB_NV21)),
    **{f"bayer_{order}8": ("u1", 1, _colour(code)) for order, code in _BAYER.items()},
}
"""Encodings of raw images: type of a value, values per pixel, and how RGB is made of them."""
_COLOUR_BELOW = ("nv12", "nv21")
"""Encodings whose colours follow the rows of brightness, in half as many rows more."""


def to_pixels(message: Any, kind: str) -> Frame:
    """Return the RGB pixels of an image message, raw or compressed.

    8UC3 and 8UC4 have no colour order of their own and are read as bgr8 and bgra8. Of mono16 the high byte counts.
    Rows may be padded. Raises ValueError, in one sentence, for what is no image.
    """
    if kind != COMPRESSED:
        return _raw_pixels(message)
    return file_pixels(bytes(message.data), str(message.format))


def to_jpeg(message: Any, kind: str) -> bytes:
    """Return the JPEG of an image message, as a robot would send it up.

    A JPEG goes through as it is, with the marker of its end where a camera has left that out. Anything
    else is encoded like the simulated camera's frames: every mode and every model gets these same bytes, so nothing is
    compared across encodings. Raises ValueError for what is no image.
    """
    if kind == COMPRESSED:
        return file_jpeg(bytes(message.data), str(message.format))
    return pixels_jpeg(_raw_pixels(message))


def file_jpeg(data: bytes, declared: str = "") -> bytes:
    """Return the JPEG of an image file, as `to_jpeg`; `declared` is its format for the message where it is none."""
    return _checked(data) if data.startswith(JPEG_START) else pixels_jpeg(_file_pixels(data, declared))


def file_pixels(data: bytes, declared: str = "") -> Frame:
    """Return the RGB pixels [H, W, 3] of an image file by its content. Raises ValueError for what is no image."""
    return decode_jpeg(data) if data.startswith(JPEG_START) else _file_pixels(data, declared)


def view_jpeg(data: bytes, declared: str = "") -> bytes:
    """Return the JPEG of what a robot's camera sent, as `file_jpeg`.

    Raises ValueError, in one sentence, also for a picture that nobody should walk on, see `check_view`.
    """
    jpeg = file_jpeg(data, declared)
    check_view(*jpeg_size(jpeg))
    return jpeg


def check_view(height: int, width: int) -> None:
    """Raise ValueError for a camera's picture of so many pixels that a robot must not walk on."""
    if min(height, width) < MIN_VIEW_SIDE or max(height, width) > MAX_VIEW_ASPECT * min(height, width):
        raise ValueError(
            f"an image of {width} x {height} pixels is no view of a camera: it has less than {MIN_VIEW_SIDE} pixels a "
            f"side, or one side is more than {MAX_VIEW_ASPECT} times the other; set the camera's resolution"
        )


def pixels_jpeg(pixels: Frame) -> bytes:
    """Return the JPEG of RGB pixels [H, W, 3]. Raises ValueError for a size that nothing on the way would take."""
    _check_size(*pixels.shape[:2])
    done, jpeg = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise ValueError(f"an image of shape {pixels.shape} cannot be encoded as JPEG")
    return _checked(bytes(jpeg))


def _checked(jpeg: bytes) -> bytes:
    if len(jpeg) <= MAX_IMAGE_BYTES:  # what is too large to be sent is not decoded
        jpeg = whole_jpeg(jpeg)
    if len(jpeg) > MAX_IMAGE_BYTES:
        raise ValueError(
            f"an image of {len(jpeg)} bytes is larger than the {MAX_IMAGE_BYTES} that one message may carry"
        )
    return jpeg


def _check_size(height: int, width: int) -> None:
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise ValueError(
            f"an image of {width} x {height} pixels is empty, longer than {MAX_SIDE} or more than {MAX_PIXELS} pixels"
        )


def _file_pixels(data: bytes, declared: str) -> Frame:
    if not data:
        raise ValueError(f"an image of 0 bytes, format {declared!r}, is empty")
    try:
        # OpenCV would take gigabytes of memory for a few kilobytes that claim so many pixels.
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise ValueError(
            f"an image of {len(data)} bytes, format {declared!r}, has far more than {MAX_PIXELS} pixels"
        ) from None
    except Exception:
        # Readers of so many formats raise anything where their file is broken.
        raise ValueError(
            f"an image of {len(data)} bytes, format {declared!r}, does not decode: no known format"
        ) from None
    _check_size(height, width)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise ValueError(f"an image of {len(data)} bytes, format {declared!r}, does not decode: is it cut off?")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _raw_pixels(message: Any) -> Frame:
    encoding, height, width, step = str(message.encoding), int(message.height), int(message.width), int(message.step)
    if encoding not in ENCODINGS:
        raise ValueError(f"a raw image's encoding is {encoding!r}; known are {', '.join(ENCODINGS)}")
    kind, count, convert = ENCODINGS[encoding]
    value = np.dtype(kind).newbyteorder(">" if message.is_bigendian else "<")
    row, rows = width * count * value.itemsize, height * 3 // 2 if encoding in _COLOUR_BELOW else height
    if not (height > 0 and width > 0 and step >= row and len(message.data) >= step * rows):
        raise ValueError(
            f"a raw image claims {width} x {height} pixels of {encoding} in rows of {step} bytes but holds "
            f"{len(message.data)} bytes"
        )
    _check_size(height, width)
    lines = np.frombuffer(message.data, np.uint8, step * rows).reshape(rows, step)
    # OpenCV takes the machine's own byte order only.
    values = np.ascontiguousarray(lines[:, :row]).view(value).astype(value.newbyteorder("="), copy=False)
    try:
        return np.asarray(convert(values.reshape(rows, width, count) if count > 1 else values), np.uint8)
    except cv2.error:
        raise ValueError(f"a raw image of {width} x {height} pixels is too small or odd for {encoding}") from None
