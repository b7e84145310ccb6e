"""Off-screen images of a compiled model: colour and segmentation, by GL or, where there is none, by rays.

An OpenGL context belongs to the thread that made it: a `Camera` must be used, and closed, in the thread that built it,
and a process that forks must not have rendered before. Each thread shares one context between its cameras.
"""

from __future__ import annotations

import logging
import os
import threading
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from vlm_nav_simulation.gl import NO_BACKEND, mujoco
from vlm_nav_simulation.ray_camera import Image, Labels, RayCamera

__all__ = ["Camera", "CameraKind", "Image", "Labels", "RayCamera", "open_camera"]

VARIABLE = "SPEC_VLM_NAV_CAMERA"
_CONTEXT_SIZE = 64
_log = logging.getLogger(__name__)


class CameraKind(str, Enum):
    """How images are rendered. None chosen: GL where it works, rays elsewhere."""

    GL = "gl"
    RAY = "ray"


@cache
def _context(process: int, thread: int) -> Any:
    try:
        context = mujoco.GLContext(_CONTEXT_SIZE, _CONTEXT_SIZE)
        context.make_current()
    except Exception as error:  # the backends raise their own, unrelated types
        raise RuntimeError(f"{NO_BACKEND} ({type(error).__name__}: {error})") from error
    return context


def chosen_kind() -> CameraKind | None:
    """Return what the environment variable SPEC_VLM_NAV_CAMERA asks for. Raises ValueError if it is no kind."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word and word not in list(CameraKind):
        raise ValueError(f"{VARIABLE}={word!r} is no camera; use {' or '.join(kind.value for kind in CameraKind)}")
    return CameraKind(word) if word else None


@cache
def _without_gl(reason: str) -> None:
    _log.warning("images are rendered by rays, about ten times slower than GL: %s", reason)


def open_camera(
    model: Any, groups: dict[int, bool] | None = None, max_geoms: int = 1200, kind: CameraKind | None = None
) -> Camera | RayCamera:
    """Return a camera of the kind asked for, else of the kind the environment names, else one that works here.

    Raises RuntimeError where GL is asked for and no GL backend works, ValueError for an unknown kind.
    """
    kind = kind or chosen_kind()
    if kind is CameraKind.RAY:
        return RayCamera(model, groups)
    try:
        return Camera(model, groups, max_geoms)
    except RuntimeError as error:
        if kind is CameraKind.GL:
            raise
        _without_gl(str(error))
        return RayCamera(model, groups)


class Camera:
    """Renders one compiled model. `groups` maps geom groups to visibility where it differs from MuJoCo's default.

    Raises RuntimeError where no GL backend works, or when used from another thread than it was built in.
    """

    def __init__(self, model: Any, groups: dict[int, bool] | None = None, max_geoms: int = 1200) -> None:
        self._owner = (os.getpid(), threading.get_ident())
        self._gl = _context(*self._owner)
        self._gl.make_current()
        self._model = model
        self._view = mujoco.MjvScene(model, maxgeom=max_geoms)
        try:
            self._renderer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        except mujoco.FatalError as error:
            raise RuntimeError(f"the GL library here cannot render: {error}") from error
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        for group, shown in (groups or {}).items():
            self._option.geomgroup[group] = shown
        self._view.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0

    def aim(self, data: Any, camera: str) -> None:
        """Look through a named camera of the model."""
        self._check_thread()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, everything, self._view)

    def colour(self, width: int, height: int, *, shadows: bool = False) -> Image:
        """Return the aimed view, RGB [height, width, 3]."""
        return self._render(width, height, shadows=shadows, segment=False)

    def bodies(self, width: int, height: int) -> Labels:
        """Return the body id of every pixel of the aimed view [height, width], -1 for none."""
        codes = self._render(width, height, shadows=False, segment=True).astype(np.int32)
        ids = codes[..., 0] + (codes[..., 1] << 8) + (codes[..., 2] << 16)
        table = np.full(self._view.ngeom + 1, -1, np.int32)
        geom_type = int(mujoco.mjtObj.mjOBJ_GEOM)
        for geom in self._view.geoms[: self._view.ngeom]:
            if geom.segid >= 0 and geom.objtype == geom_type:
                table[geom.segid + 1] = self._model.geom_bodyid[geom.objid]
        labels: Labels = table[ids]
        return labels

    def _render(self, width: int, height: int, *, shadows: bool, segment: bool) -> Image:
        self._check_thread()
        self._gl.make_current()
        # several renderers share the GL context: each must claim the frame buffer before it renders
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._renderer)
        flags = self._view.flags
        flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = segment
        area, image = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(area, self._view, self._renderer)
        mujoco.mjr_readPixels(image, None, area, self._renderer)
        return image[::-1]

    def close(self) -> None:
        """Free the GL objects; the camera renders no more."""
        self._check_thread()
        self._gl.make_current()
        self._renderer.free()

    def _check_thread(self) -> None:
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RuntimeError(
                "a camera renders in the thread that built it only; build a World and render in one thread"
            )
