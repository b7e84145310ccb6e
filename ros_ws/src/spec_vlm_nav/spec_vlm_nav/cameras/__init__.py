"""The sources of camera frames: a new one is a file here and its entry in `source_of`."""

from __future__ import annotations

from spec_vlm_nav.camera import TOPIC, Source, SourceSettings
from spec_vlm_nav.cameras.multicast import Multicast
from spec_vlm_nav.cameras.topic import ImageTopic
from spec_vlm_nav.cameras.videohub import Send, Videohub


def source_of(settings: SourceSettings, max_hz: float, send: Send) -> Source:
    """Return the checked source that the settings name; `send` sends one videohub call.

    Raises ValueError for a setting that cannot work here, RuntimeError where a library is missing.
    """
    if settings.source == "videohub":
        return Videohub(send, max_hz, settings.videohub_timeout_s)
    if settings.source.startswith(TOPIC):
        return ImageTopic(settings.source)
    return Multicast(settings)
