"""A scene with the robot in it: a kinematic Go2, its front camera, and views from outside."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from vlm_nav_simulation.camera import CameraKind, Image, Labels, open_camera
from vlm_nav_simulation.geometry import GO2_MOUNT, NOSE, CameraMount, Pose, advance, wrap
from vlm_nav_simulation.gl import mujoco
from vlm_nav_simulation.mujoco_scene import (
    BASE_BODY,
    CEILING_GROUP,
    FRONT_CAMERA,
    TOP_CAMERA,
    build_spec,
    object_body,
)
from vlm_nav_simulation.robot_model import add_robot
from vlm_nav_simulation.scene import Scene

BASE_HEIGHT = 0.335
LYING_HEIGHT = 0.10
_STRIDE_HZ = 2.2
_BOB, _ROLL = 0.006, 0.012
_OUTSIDE_LIMIT = (1280, 960)


class World:
    """The robot in a scene. Frames are square, `size` pixels a side; `mount` is where and how wide the camera looks.

    The base is kinematic: velocities are obeyed exactly until the footprint touches something. The front camera's model
    holds no robot body.
    `camera` chooses GL or rays (`camera.py`).
    Build it, render with it and close it in one thread (see `camera.py`); another may move it meanwhile.
    Raises ValueError for a size above 960.
    """

    def __init__(
        self, scene: Scene, size: int = 224, camera: CameraKind | None = None, mount: CameraMount = GO2_MOUNT
    ) -> None:
        if not 28 <= size <= 960:
            raise ValueError(f"frame size {size} is outside 28..960 pixels")
        self.scene, self.size = scene, size
        self.pose = scene.start
        self.height = BASE_HEIGHT
        self.blocked = False
        """Whether something cut the last action short (`vlm_nav_simulation.episode.execute`)."""
        self._phase = self._stride = 0.0
        self._kind = camera
        self._moving = threading.Lock()
        """Held while the robot is put somewhere, and while a camera copies where it is."""
        self._model = build_spec(scene, size, size).compile()
        self._data = mujoco.MjData(self._model)
        self._data.mocap_pos[0] = 0.0
        self._front = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, FRONT_CAMERA)
        self._model.cam_pos[self._front] = (NOSE, 0.0, mount.height_m - BASE_HEIGHT)
        self._model.cam_fovy[self._front] = mount.fov_deg
        level, half = self._model.cam_quat[self._front].copy(), math.radians(mount.pitch_deg) / 2
        mujoco.mju_mulQuat(self._model.cam_quat[self._front], np.array([math.cos(half), 0, math.sin(half), 0]), level)
        self._camera = open_camera(self._model, {CEILING_GROUP: True}, kind=camera)
        self._objects = np.full(self._model.nbody + 1, -1, np.int32)
        for item in scene.objects:
            body = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_BODY, object_body(item.index))
            self._objects[body] = item.index
        self._outside: _OutsideView | None = None
        self.set_pose(*scene.start)

    def set_pose(self, x: float, y: float, yaw: float) -> None:
        """Put the standing, still robot somewhere; collisions are not checked."""
        self.pose, self._phase, self._stride = Pose(x, y, wrap(yaw)), 0.0, 0.0
        self._apply()

    def set_gait(self, phase: float, stride: float) -> None:
        """Set the trot's phase (radians) and stride (0 still .. 1 full), which make the camera bob and roll."""
        self._phase, self._stride = phase, stride
        self._apply()

    @property
    def gait(self) -> tuple[float, float]:
        """The trot's phase and stride, as `set_gait` takes them."""
        return self._phase, self._stride

    def set_height(self, height: float) -> None:
        """Set the base height in metres (posture), from LYING_HEIGHT to BASE_HEIGHT."""
        self.height = min(max(height, LYING_HEIGHT), BASE_HEIGHT)
        self._apply()

    def move(self, vx: float, vy: float, wz: float, dt: float) -> bool:
        """Walk with body velocities (m/s, m/s, rad/s) for `dt` seconds; return whether something blocked the way."""
        self.pose, blocked = advance(self.scene.obstacles, self.pose, vx * dt, vy * dt, wz * dt)
        speed = math.hypot(vx, vy) + 0.3 * abs(wz)
        self._stride = min(1.0, speed / 0.5) if speed > 1e-3 else 0.0
        self._phase = (self._phase + 2 * math.pi * _STRIDE_HZ * dt) % (2 * math.pi) if self._stride else 0.0
        self._apply()
        return blocked

    def displace(self, metres: float, radians: float) -> bool:
        """Walk and turn by exactly that much, or until something blocks it; return whether. Then the robot stands."""
        blocked = self.move(metres, 0.0, radians, 1.0)
        self.set_pose(*self.pose)
        return blocked

    def render(self) -> Image:
        """Return the front camera's frame, RGB [size, size, 3]."""
        self._aim()
        return self._camera.colour(self.size, self.size)

    def segmentation(self) -> Labels:
        """Return the object index of every pixel of the frame [size, size], -1 where there is none."""
        self._aim()
        labels: Labels = self._objects[self._camera.bodies(self.size, self.size)]
        return labels

    def render_top(self, width: int = 480, height: int = 480) -> Image:
        """Return the room from above without its ceiling, RGB [height, width, 3]."""
        return self._outside_view().render(self, width, height)

    def close(self) -> None:
        """Free the GL objects."""
        self._camera.close()
        if self._outside is not None:
            self._outside.camera.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def camera_pose(self) -> tuple[Any, Any]:
        """The front camera's position [3] and rotation [3, 3] (columns right, up, back) in the room."""
        return self._data.cam_xpos[self._front].copy(), self._data.cam_xmat[self._front].reshape(3, 3).copy()

    @property
    def base(self) -> tuple[list[float], list[float]]:
        """Position and quaternion (w x y z) of the base, bob included."""
        roll, half = _ROLL * self._stride * math.sin(self._phase), self.pose.yaw / 2
        cos, sin, r_cos, r_sin = math.cos(half), math.sin(half), math.cos(roll / 2), math.sin(roll / 2)
        z = self.height + _BOB * self._stride * math.sin(2 * self._phase)
        return [self.pose.x, self.pose.y, z], [cos * r_cos, cos * r_sin, sin * r_sin, sin * r_cos]

    def _apply(self) -> None:
        with self._moving:
            self._data.mocap_pos[0], self._data.mocap_quat[0] = self.base
            mujoco.mj_kinematics(self._model, self._data)
            mujoco.mj_camlight(self._model, self._data)

    def _aim(self) -> None:
        with self._moving:
            self._camera.aim(self._data, FRONT_CAMERA)

    def _outside_view(self) -> _OutsideView:
        if self._outside is None:
            self._outside = _OutsideView(self.scene, self._kind)
        return self._outside


class _OutsideView:
    """The scene with the robot's body in it, built when first needed."""

    def __init__(self, scene: Scene, kind: CameraKind | None) -> None:
        spec = build_spec(scene, *_OUTSIDE_LIMIT)
        add_robot(spec, spec.body(BASE_BODY))
        spec.visual.quality.shadowsize = 1024
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        self.camera = open_camera(self._model, {CEILING_GROUP: False}, 2000, kind)

    def render(self, world: World, width: int, height: int) -> Image:
        self._data.mocap_pos[0], self._data.mocap_quat[0] = world.base
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self.camera.aim(self._data, TOP_CAMERA)
        return self.camera.colour(width, height, shadows=True)
