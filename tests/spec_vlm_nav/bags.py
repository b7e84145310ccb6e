"""Messages for bags that tests write."""

from __future__ import annotations

from typing import Any

import numpy as np

from spec_vlm_nav.images import RAW

CHANNELS = {"rgb8": "rgb", "bgr8": "bgr", "rgba8": "rgba", "bgra8": "bgra", "mono8": "r"}


def header(types: Any, stamp_ns: int = 0, frame_id: str = "camera") -> Any:
    time = types.types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 1_000_000_000))
    return types.types["std_msgs/msg/Header"](stamp=time, frame_id=frame_id)


def raw_image(
    types: Any, encoding: str, colour: tuple[int, int, int], padding: int = 0, stamp_ns: int = 0, size: int = 48
) -> Any:
    """Return an Image of one colour (RGB), `size` high and 4/3 as wide, its rows padded with other bytes."""
    width = size * 4 // 3
    values = dict(zip("rgb", colour, strict=True)) | {"a": 255}
    row = np.array([values[channel] for channel in CHANNELS[encoding]] * width + [77] * padding, np.uint8)
    return blank(
        types,
        RAW,
        header=header(types, stamp_ns),
        height=size,
        width=width,
        encoding=encoding,
        is_bigendian=0,
        step=len(row),
        data=np.tile(row, size),
    )


def blank(types: Any, kind: str, **fields: Any) -> Any:
    """Return a message with zeros for every field that is not given."""
    values = {}
    for name, (node, details) in types.get_msgdef(kind).fields:
        values[name] = fields[name] if name in fields else _zero(types, node.name, details)
    return types.types[kind](**values)


def _zero(types: Any, node: str, details: Any) -> Any:
    if node == "BASE":
        return "" if details[0] == "string" else 0
    if node == "NAME":
        return blank(types, details)
    return np.zeros(details[1], np.float64)  # the covariances of odometry
