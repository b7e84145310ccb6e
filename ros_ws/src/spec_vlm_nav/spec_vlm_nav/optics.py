"""From a camera's own image to the image of a set field of view: crop, undistort, level, shrink. No ROS.

Pixel centres have whole coordinates, as in OpenCV and in sensor_msgs/CameraInfo: the left edge of an image is at -0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import cv2
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from speculation.images import check_view
from speculation.settings import CheckedSettings

Image = npt.NDArray[np.uint8]
"""BGR [height, width, 3], as OpenCV has it."""
Matrix = npt.NDArray[np.float64]

ASPECT_TOLERANCE = 0.01
GO2_HEIGHT = 0.378
"""The front camera above the floor while a Go2 stands, metres."""
FLOOR_M = 2.0
"""Where the floor stays in the image whatever the camera's height, metres ahead: about where objects are recognised."""
FINER = 2.0
"""An image is shrunk to this many times the resolution of the result's centre before it is sampled: the result's edges
are stretched by the perspective and need more than its centre."""


class LensSettings(CheckedSettings, frozen=True):
    """The calibration of the source, plumb_bob model. The defaults are of one Go2's front camera, not of every one."""

    fx: Annotated[float, Meta(ge=1.0, le=1e5, description="focal length of the source, pixels across")] = 864.4
    fy: Annotated[float, Meta(ge=1.0, le=1e5, description="focal length of the source, pixels down")] = 863.7
    cx: Annotated[float, Meta(ge=0.0, le=1e5, description="principal point of the source, pixels across")] = 639.2
    cy: Annotated[float, Meta(ge=0.0, le=1e5, description="principal point of the source, pixels down")] = 373.3
    k1: Annotated[float, Meta(ge=-10.0, le=10.0, description="radial distortion of the source, plumb_bob")] = -0.3546
    k2: Annotated[float, Meta(ge=-10.0, le=10.0, description="radial distortion of the source, plumb_bob")] = 0.1021
    p1: Annotated[float, Meta(ge=-1.0, le=1.0, description="tangential distortion of the source, plumb_bob")] = -0.0016
    p2: Annotated[float, Meta(ge=-1.0, le=1.0, description="tangential distortion of the source, plumb_bob")] = -0.0012
    k3: Annotated[float, Meta(ge=-10.0, le=10.0, description="radial distortion of the source, plumb_bob")] = 0.0
    source_width: Annotated[
        int, Meta(ge=16, le=8192, description="width that fx and cx belong to; other sizes of its aspect are scaled")
    ] = 1280
    source_height: Annotated[int, Meta(ge=16, le=8192, description="height that fy and cy belong to")] = 720


class ViewSettings(CheckedSettings, frozen=True):
    """The image that is published. The default is what the embedded models were trained on: the simulator's camera."""

    fov_deg: Annotated[
        float,
        Meta(ge=0.0, le=150.0, description="horizontal field of view, degrees; 0: the whole image, only scaled"),
    ] = 90.0
    width: Annotated[int, Meta(ge=16, le=1920, description="pixels across")] = 224
    height: Annotated[int, Meta(ge=16, le=1920, description="pixels down")] = 224
    camera_height_m: Annotated[
        float, Meta(ge=0.05, le=3.0, description="camera above the floor, m; a set fov_deg is tilted by it")
    ] = GO2_HEIGHT

    @property
    def tilt(self) -> float:
        """How far down an image with a set field of view looks, radians: the floor `FLOOR_M` ahead is at the row at
        which a level camera of the Go2's height has it."""
        return math.atan(self.camera_height_m / FLOOR_M) - math.atan(GO2_HEIGHT / FLOOR_M)


@dataclass(frozen=True)
class Pinhole:
    """What sensor_msgs/CameraInfo has of an image."""

    width: int
    height: int
    matrix: Matrix
    """Pixels of a direction [3, 3]; zeros where that is not known, as sensor_msgs/CameraInfo has it."""
    distortion: tuple[float, ...]
    """k1, k2, p1, p2, k3; zeros for an undistorted image, none where they are not known."""


def _matrix(fx: float, fy: float, cx: float, cy: float) -> Matrix:
    return np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])


def _scaled(matrix: Matrix, across: float, down: float) -> Matrix:
    """Return the matrix of the same image in another size."""
    (fx, _, cx), (_, fy, cy), _ = matrix
    return _matrix(fx * across, fy * down, (cx + 0.5) * across - 0.5, (cy + 0.5) * down - 0.5)


def _levelling(roll: float, pitch: float) -> Matrix:
    """Return the rotation [3, 3] of directions seen by a mounted camera to those of a level one, both optical."""
    rolled = cv2.Rodrigues(np.array([0.0, 0.0, roll]))[0]
    pitched = cv2.Rodrigues(np.array([-pitch, 0.0, 0.0]))[0]
    return np.asarray(pitched @ rolled, np.float64)


def extended(values: npt.NDArray[Any], shown: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Return values [height, width, ...] where those that are not shown are those of the nearest place that is.

    A model that never saw a black border finds next to nothing in a frame that has one.
    """
    hidden = (~shown).astype(np.uint8)
    _, labels = cv2.distanceTransformWithLabels(hidden, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    nearest = np.zeros(int(labels.max()) + 1, np.int64)
    nearest[labels[shown]] = np.flatnonzero(shown)
    return np.asarray(values.reshape(shown.size, *values.shape[2:])[nearest[labels]])


def _unfolded(radii: Matrix, lens: LensSettings) -> npt.NDArray[np.bool_]:
    """Return where the lens model is one to one: beyond that radius a polynomial shows the same pixels again."""
    radius = np.linspace(0.0, float(radii.max()), 2048)
    square = radius * radius
    distorted = radius * (1 + square * (lens.k1 + square * (lens.k2 + square * lens.k3)))
    folds = np.flatnonzero(np.diff(distorted) <= 0)
    inside: npt.NDArray[np.bool_] = radii <= (radius[folds[0]] if folds.size else math.inf)
    return inside


class Optics:
    """Makes the published image of source images of one size; `camera` describes it.

    The whole image needs no calibration. A set field of view does: raises ValueError where the source's size has
    another aspect than it, and for a source that is no view of a camera.
    """

    def __init__(
        self, lens: LensSettings, view: ViewSettings, width: int, height: int, roll: float = 0.0, pitch: float = 0.0
    ) -> None:
        """`roll`, `pitch`: of the mounted camera, radians, as URDF has them; a set field of view is shown level."""
        self.source_size = (width, height)
        check_view(height, width)
        across, down = width / lens.source_width, height / lens.source_height
        fits = abs(across / down - 1) <= ASPECT_TOLERANCE
        if view.fov_deg and not fits:
            raise ValueError(
                f"the source sends {width} x {height} pixels, its calibration (source_width, source_height) is of "
                f"{lens.source_width} x {lens.source_height}: another aspect; give that camera's calibration, or set "
                "fov_deg to 0.0 for its whole image"
            )
        own = _scaled(_matrix(lens.fx, lens.fy, lens.cx, lens.cy), across, down)
        distortion = (lens.k1, lens.k2, lens.p1, lens.p2, lens.k3)
        self._size = (view.width, view.height)
        self._maps: tuple[Any, Any] | None = None
        self.shown: npt.NDArray[np.bool_] = np.ones((view.height, view.width), np.bool_)
        """Which pixels [height, width] of the published image the source shows; the others repeat the nearest ones."""
        self.covered = 1.0
        """Part of the published image that the source shows."""
        if not view.fov_deg:
            matrix = _scaled(own, view.width / width, view.height / height)
            unknown = Pinhole(view.width, view.height, np.zeros((3, 3)), ())
            self.camera = Pinhole(view.width, view.height, matrix, distortion) if fits else unknown
            return
        focal = view.width / 2 / math.tan(math.radians(view.fov_deg) / 2)
        matrix = _matrix(focal, focal, (view.width - 1) / 2, (view.height - 1) / 2)
        self.camera = Pinhole(view.width, view.height, matrix, (0.0,) * 5)
        shrink = min(1.0, FINER * focal / float(own[0, 0]))
        self._shrunk = (max(1, round(width * shrink)), max(1, round(height * shrink)))
        small = _scaled(own, self._shrunk[0] / width, self._shrunk[1] / height)
        turn = _levelling(roll, pitch - view.tilt)
        x, y = cv2.initUndistortRectifyMap(small, np.array(distortion), turn, matrix, self._size, cv2.CV_32FC1)
        columns, rows = np.meshgrid(np.arange(view.width), np.arange(view.height))
        across, down = (columns - matrix[0, 2]) / focal, (rows - matrix[1, 2]) / focal
        rays = np.stack([across, down, np.ones_like(across)], axis=-1) @ turn
        ahead = rays[..., 2] > 0.0
        radii = np.hypot(rays[..., 0], rays[..., 1]) / np.where(ahead, rays[..., 2], 1.0)
        shown = ahead & _unfolded(radii, lens)
        shown &= (x >= -0.5) & (x <= self._shrunk[0] - 0.5) & (y >= -0.5) & (y <= self._shrunk[1] - 0.5)
        self.shown, self.covered = shown, float(shown.mean())
        if not self.covered:
            angle = f"{math.degrees(pitch):.3g} degrees"
            raise ValueError(f"the camera sees nothing of the level view ahead of it: its pitch is {angle}")
        x, y = np.clip(x, 0, self._shrunk[0] - 1), np.clip(y, 0, self._shrunk[1] - 1)
        self._maps = extended(x, shown).astype(np.float32), extended(y, shown).astype(np.float32)

    def apply(self, image: Image) -> Image:
        """Return the published image [height, width, 3] of a source image of the size this was made for.

        Raises ValueError for another size.
        """
        height, width = image.shape[:2]
        if (width, height) != self.source_size:
            raise ValueError(f"made for images of {self.source_size}, not {width} x {height}")
        if self._maps is None:
            return self._resized(image, self._size)
        small = self._resized(image, self._shrunk)
        return np.asarray(cv2.remap(small, *self._maps, cv2.INTER_LINEAR), np.uint8)

    def _resized(self, image: Image, size: tuple[int, int]) -> Image:
        if size == self.source_size:
            return image
        return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
