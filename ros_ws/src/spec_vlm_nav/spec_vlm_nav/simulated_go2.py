"""The simulated robot on a given clock: requests in; odometry, state, frames and ground truth out. No ROS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from spec_vlm_nav.parameters import Parameters
from speculation.settings import CheckedSettings
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.geometry import Pose, wrap
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.line_of_sight import ranges
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.scene import scene_of as scene_of
from vlm_nav_simulation.sport import ModeState, MotionServices, Posture, Velocity
from vlm_nav_simulation.world import BASE_HEIGHT, LYING_HEIGHT, World

SCAN_ANGLES = tuple(math.radians(angle) for angle in range(-120, 121, 2))
"""Rays of the simulated laser scanner, counter-clockwise from straight ahead, radians."""
BATTERY_S = 7200.0
"""How long the simulated battery lasts."""
MAX_DT = 0.1
"""A simulator that was held up does not jump: longer steps are cut to this many seconds."""


class RoomSettings(msgspec.Struct, frozen=True):
    """Which simulated room it is; published with the ground truth, so that a recorded run can be shown in its room."""

    seed: Annotated[int, Meta(ge=0, le=2**31 - 1, description="which room")] = 0
    difficulty: Annotated[Literal["easy", "middle", "hard"], Meta(description="what the room is like")] = "middle"
    target: Annotated[str, Meta(description="object to hide, 'silver bottle'; empty: by the seed")] = "silver bottle"
    layout: Annotated[Layout, Meta(description="how many rooms there are")] = Layout.ROOM


class RobotSettings(CheckedSettings, frozen=True):
    """How the simulated Go2 walks and what it publishes."""

    image_size: Annotated[int, Meta(ge=56, le=960, description="pixels a side of the camera frame")] = 224
    camera_hz: Annotated[float, Meta(ge=0.5, le=30.0, description="camera frames a second")] = 8.0
    odom_hz: Annotated[float, Meta(ge=10.0, le=200.0, description="odometry and state messages a second")] = 50.0
    scan_hz: Annotated[
        float, Meta(ge=0.0, le=50.0, description="laser scans a second, of the ground truth; 0: none")
    ] = 0.0


ROOM, ROBOT = Parameters(RoomSettings), Parameters(RobotSettings)


@dataclass(frozen=True)
class Truth:
    """What only a simulator knows; for scoring, never for deciding. Metres; `collisions` counts bumps, not ticks."""

    x: float
    y: float
    yaw: float
    target: str
    distance: float
    visible: bool
    collisions: int
    path_length: float
    posture: str


class SimulatedGo2:
    """A World and a sport service that move together.

    GL is bound to a thread: build it, call `frame` and `truth`, and close it in one; the rest may run in another.
    """

    def __init__(self, scene: Scene, clock: Callable[[], float], size: int = 224) -> None:
        self._world = World(scene, size)
        self._clock, self._began = clock, clock()
        self._last = self._began
        self._services = MotionServices(clock, Posture.LYING)
        self._world.set_height(LYING_HEIGHT)
        self._blocked = False
        self._collisions, self._path_length = 0, 0.0
        self.velocity = Velocity(0.0, 0.0, 0.0)

    @property
    def pose(self) -> Pose:
        """Where the base is: metres, radians."""
        return self._world.pose

    @property
    def charge(self) -> int:
        """What is left of the battery, percent."""
        return max(0, math.ceil(100.0 * (1.0 - (self._clock() - self._began) / BATTERY_S)))

    def request(self, api_id: int, parameter: str) -> int:
        """Carry out a sport request and return its status code."""
        code = int(self._services.request_sport(api_id, parameter))
        self._world.set_height(BASE_HEIGHT if self._services.posture.standing else LYING_HEIGHT)
        return code

    def request_avoid(self, api_id: int, parameter: str) -> tuple[int, str]:
        """Carry out a request of obstacles_avoid; return its status code and the data of its answer."""
        code, data = self._services.request_avoid(api_id, parameter)
        return int(code), data

    def state(self) -> ModeState:
        """Return what the state topic shows of the posture."""
        return self._services.state(self.velocity)

    def scan(self) -> list[float]:
        """Return the distances, metres, that a laser scanner at the centre of the base measures at `SCAN_ANGLES`."""
        pose = self._world.pose
        angles = np.asarray(SCAN_ANGLES) + pose.yaw
        return [float(each) for each in ranges(self._world.scene.obstacles, pose[:2], angles)]

    def advance(self) -> None:
        """Walk until now. `velocity` is what the base really did, so it is zero against a wall."""
        now = self._clock()
        dt, self._last = min(now - self._last, MAX_DT), now
        if dt <= 0.0:
            return
        wanted, before = self._services.velocity(now), self._world.pose
        blocked = self._world.move(*wanted, dt)
        self._collisions += blocked and not self._blocked
        self._blocked = blocked
        after = self._world.pose
        dx, dy = after.x - before.x, after.y - before.y
        self._path_length += math.hypot(dx, dy)
        cos, sin = math.cos(before.yaw), math.sin(before.yaw)
        turned = wrap(after.yaw - before.yaw)
        self.velocity = Velocity((dx * cos + dy * sin) / dt, (dy * cos - dx * sin) / dt, turned / dt)

    def frame(self) -> bytes:
        """Return the front camera's view as JPEG."""
        return encode_jpeg(self._world.render())

    def truth(self) -> Truth:
        """Return the ground truth of this moment; costs one segmentation image."""
        scene, pose = self._world.scene, self._world.pose
        target = observe(self._world)[scene.target_index]
        return Truth(
            round(pose.x, 4),
            round(pose.y, 4),
            round(pose.yaw, 4),
            scene.target.text,
            round(target.distance, 3),
            target.visible,
            self._collisions,
            round(self._path_length, 3),
            self._services.posture.value,
        )

    def close(self) -> None:
        """Free the GL objects."""
        self._world.close()
