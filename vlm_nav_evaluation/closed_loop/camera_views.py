"""What models see of another camera than the Go2's: its frames as they are, or as `go2_camera` makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import lru_cache

from spec_vlm_nav.optics import LensSettings, Optics, ViewSettings, extended
from vlm_nav_simulation.camera import Image
from vlm_nav_simulation.geometry import CameraMount

SIZE = 224
"""Pixels a side of what models see."""
FINER = 2
"""A camera has more pixels than what is made of its frames."""


class Crop(str, Enum):
    """How a camera's frames become what models see."""

    NONE = "none"
    """As they are, only scaled."""
    VIEW = "view"
    """Levelled, tilted by the camera's height, with the field of view that the embedded pair knows."""
    GO2 = "go2"
    """The same of what the Go2's own lens shows; the simulator's camera sees more."""

    @property
    def source_size(self) -> int:
        """Pixels a side of the camera's frame."""
        return SIZE if self is Crop.NONE else FINER * SIZE

    def fov_deg(self, mount: CameraMount) -> float:
        """Return the field of view of what models see, degrees."""
        return mount.fov_deg if self is Crop.NONE else ViewSettings().fov_deg


@lru_cache
def shown(mount: CameraMount, crop: Crop) -> Callable[[Image], Image]:
    """Return what makes what models see of a frame [source_size, source_size, 3]."""
    if crop is Crop.NONE:
        return lambda frame: frame
    size = crop.source_size
    focal, middle = size / 2 / math.tan(math.radians(mount.fov_deg) / 2), (size - 1) / 2
    lens = LensSettings(focal, focal, middle, middle, 0.0, 0.0, 0.0, 0.0, 0.0, size, size)
    view = ViewSettings(camera_height_m=mount.height_m)
    pitch = math.radians(mount.pitch_deg)
    optics = Optics(lens, view, size, size, pitch=pitch)
    if crop is Crop.VIEW:
        return optics.apply
    own = LensSettings()
    shows = Optics(own, view, own.source_width, own.source_height, pitch=pitch).shown
    return lambda frame: extended(optics.apply(frame), shows)
