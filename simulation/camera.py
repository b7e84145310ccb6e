"""Off-screen pictures of a compiled model: colour and segmentation.

An OpenGL context belongs to the thread that made it: a `Camera` must be used, and closed, in the thread that built it,
and a process that forks must not have drawn before. Every thread that draws shares one context between its cameras.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simulation.gl import NO_BACKEND, mujoco

Image = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]
View: TypeAlias = tuple[tuple[float, float, float], float, float, float]
"""Point looked at, distance to it (metres), azimuth and elevation of the line of sight (degrees)."""
_CONTEXT_SIZE = 64


@cache
def _context(process: int, thread: int) -> Any:
    try:
        context = mujoco.GLContext(_CONTEXT_SIZE, _CONTEXT_SIZE)
        context.make_current()
    except Exception as error:  # the backends raise their own, unrelated types
        raise RuntimeError(f"{NO_BACKEND} ({type(error).__name__}: {error})") from error
    return context


class Camera:
    """Draws one compiled model. `groups` maps geom groups to visibility where it differs from MuJoCo's default.

    Raises RuntimeError where no GL backend works, or when used from another thread than it was built in.
    """

    def __init__(self, model: Any, groups: dict[int, bool] | None = None, max_geoms: int = 1200) -> None:
        self._owner = (os.getpid(), threading.get_ident())
        self._gl = _context(*self._owner)
        self._gl.make_current()
        self._model = model
        self._view = mujoco.MjvScene(model, maxgeom=max_geoms)
        self._renderer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        for group, shown in (groups or {}).items():
            self._option.geomgroup[group] = shown
        self._view.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0

    def aim(self, data: Any, camera: str | View) -> None:
        """Look through a named camera of the model, or from outside as a `View` says."""
        self._check_thread()
        if isinstance(camera, str):
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self._camera.fixedcamid = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        else:
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FREE
            self._camera.lookat, self._camera.distance, self._camera.azimuth, self._camera.elevation = camera
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, everything, self._view)

    def colour(self, width: int, height: int, *, shadows: bool = False) -> Image:
        """Return the aimed view, RGB [height, width, 3]."""
        return self._draw(width, height, shadows=shadows, segment=False)

    def bodies(self, width: int, height: int) -> Labels:
        """Return the body id of every pixel of the aimed view [height, width], -1 for none."""
        codes = self._draw(width, height, shadows=False, segment=True).astype(np.int32)
        ids = codes[..., 0] + (codes[..., 1] << 8) + (codes[..., 2] << 16)
        table = np.full(self._view.ngeom + 1, -1, np.int32)
        geom_type = int(mujoco.mjtObj.mjOBJ_GEOM)
        for geom in self._view.geoms[: self._view.ngeom]:
            if geom.segid >= 0 and geom.objtype == geom_type:
                table[geom.segid + 1] = self._model.geom_bodyid[geom.objid]
        labels: Labels = table[ids]
        return labels

    def _draw(self, width: int, height: int, *, shadows: bool, segment: bool) -> Image:
        self._check_thread()
        self._gl.make_current()
        # several renderers share the GL context: each must claim the frame buffer before it draws
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._renderer)
        flags = self._view.flags
        flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = segment
        area, image = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(area, self._view, self._renderer)
        mujoco.mjr_readPixels(image, None, area, self._renderer)
        return image[::-1]

    def close(self) -> None:
        """Free the GL objects; the camera draws no more."""
        self._check_thread()
        self._gl.make_current()
        self._renderer.free()

    def _check_thread(self) -> None:
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RuntimeError("a camera draws only in the thread that built it; build and use the World in one thread")
