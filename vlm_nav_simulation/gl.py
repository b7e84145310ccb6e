"""MuJoCo, imported with a headless GL backend: the only place that imports it.

MuJoCo reads MUJOCO_GL once, at import; without it, it looks for a display and fails on a robot or a server.
"""

from __future__ import annotations

import ctypes
import os
import sys

BACKENDS = {"egl": ("libEGL.so.1", "libGL.so.1"), "osmesa": ("libOSMesa.so.8",)}
"""Shared libraries that each backend needs, the preferred backend first."""

NO_BACKEND = (
    "no GL library for off-screen rendering (looked for EGL, then OSMesa): "
    "run `apt-get install libegl1 libgl1`, set MUJOCO_GL yourself, or use rays: SPEC_VLM_NAV_CAMERA=ray"
)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def choose_backend() -> str | None:
    """Return the first backend whose libraries load, None where there is none."""
    return next((name for name, libraries in BACKENDS.items() if all(map(_loads, libraries))), None)


if "MUJOCO_GL" not in os.environ and sys.platform == "linux":
    # left to itself MuJoCo would look for a display
    os.environ["MUJOCO_GL"] = choose_backend() or "disable"

import mujoco  # noqa: E402

__all__ = ["BACKENDS", "NO_BACKEND", "choose_backend", "mujoco"]
