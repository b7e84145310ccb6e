"""The same stream by GStreamer: through an OpenCV that is built with it, or through PyGObject."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from spec_vlm_nav.camera import GRAB_S
from spec_vlm_nav.cameras.device import OpenCvSource
from spec_vlm_nav.optics import Image

SINK = "appsink"
"""OpenCV looks for a sink whose name has this word in it."""
WAITING = "no frame comes out of GStreamer"


def pipeline(group: str, port: int, interface: str, decode: str) -> str:
    """Return the description of the pipeline; its sink holds the newest frame only."""
    return (
        f"udpsrc address={group} port={port} multicast-iface={interface} ! "
        "application/x-rtp,media=video,clock-rate=90000,encoding-name=H264 ! rtph264depay ! h264parse ! "
        f"{decode} ! video/x-raw,format=BGR ! appsink name={SINK} drop=true max-buffers=1 sync=false"
    )


def bindings() -> tuple[Any, Any]:
    """Return GLib and Gst. Raises RuntimeError, with what to install, where PyGObject or GStreamer is missing."""
    try:
        import gi

        gi.require_version("Gst", "1.0")
        gi.require_version("GstApp", "1.0")
        # GstApp gives the sink its methods.
        from gi.repository import GLib, Gst, GstApp  # noqa: F401
    except (ImportError, ValueError) as error:
        packages = "python3-gi gir1.2-gst-plugins-base-1.0 gstreamer1.0-libav"
        raise RuntimeError(f"GStreamer by PyGObject is missing ({error}): apt install {packages}") from None
    return GLib, Gst


class OpenCvPipeline(OpenCvSource):
    """A pipeline in cv2.VideoCapture, whose calls wait as long as the stream is silent. Raises OSError where it does
    not start.
    """

    waiting = WAITING

    def __init__(self, text: str) -> None:
        super().__init__(cv2.VideoCapture(text, cv2.CAP_GSTREAMER))
        if not self._video.isOpened():
            self.close()
            raise OSError(f"GStreamer does not start: {text}")


class Pipeline:
    """A pipeline through PyGObject. Raises RuntimeError where GStreamer's bindings are missing, OSError where it does
    not start.
    """

    waiting = WAITING

    def __init__(self, text: str) -> None:
        GLib, Gst = bindings()
        Gst.init(None)
        self._gst = Gst
        try:
            self._pipeline = Gst.parse_launch(text)
        except GLib.Error as error:
            raise OSError(f"GStreamer: {error.message}") from None
        self._sink = self._pipeline.get_by_name(SINK)
        self._sample: Any = None
        if self._pipeline.set_state(Gst.State.PLAYING) == Gst.StateChangeReturn.FAILURE:
            problem = self._problem()
            self.close()
            raise OSError(f"GStreamer does not start: {problem or text}")

    def grab(self) -> bool:
        sample = self._sink.try_pull_sample(int(GRAB_S * self._gst.SECOND))
        if sample is None:
            problem = self._problem()
            if problem or self._sink.is_eos():
                raise OSError(f"GStreamer: {problem or 'the stream has ended'}")
            return False
        self._sample = sample
        return True

    def retrieve(self) -> Image:
        shape = self._sample.get_caps().get_structure(0)
        height, width = shape.get_value("height"), shape.get_value("width")
        buffer = self._sample.get_buffer()
        data = np.frombuffer(buffer.extract_dup(0, buffer.get_size()), np.uint8)
        # GStreamer pads rows to whole words.
        rows = data.reshape(height, -1)[:, : 3 * width]
        return np.ascontiguousarray(rows).reshape(height, width, 3)

    def close(self) -> None:
        self._pipeline.set_state(self._gst.State.NULL)

    def _problem(self) -> str:
        message = self._pipeline.get_bus().pop_filtered(self._gst.MessageType.ERROR)
        return "" if message is None else str(message.parse_error()[0].message)
