"""The sources of camera frames: a new one is a file here and its entry in `opener_of`."""

from __future__ import annotations

from spec_vlm_nav.camera import Opener, SourceSettings
from spec_vlm_nav.cameras.device import Device
from spec_vlm_nav.cameras.multicast import Multicast
from spec_vlm_nav.cameras.topic import PREFIX, ImageTopic
from spec_vlm_nav.cameras.videohub import Send, Videohub


def opener_of(settings: SourceSettings, max_hz: float, send: Send) -> Opener:
    """Return the checked source that the settings name; `send` sends one videohub call.

    Raises ValueError for a setting that cannot work here, OSError for a device or file that does not exist,
    RuntimeError where a library is missing.
    """
    if settings.source == "videohub":
        return Videohub(send, max_hz, settings.videohub_timeout_s)
    if settings.source == "multicast":
        return Multicast(settings)
    if settings.source.startswith(PREFIX):
        return ImageTopic(settings.source)
    return Device(settings.source)
