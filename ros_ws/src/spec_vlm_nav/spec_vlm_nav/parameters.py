"""ROS parameters made from settings structs: their names, defaults, descriptions and limits. No ROS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from spec_vlm_nav.goal_file import RESUME_MOST_S
from spec_vlm_nav.guard import GuardSettings
from spec_vlm_nav.motion import MotionConfig
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.robot import Robot
from spec_vlm_nav.robots import ROBOTS, robot_of
from spec_vlm_nav.safety import Limits
from spec_vlm_nav.sighting import FrameSettings
from speculation.settings import CheckedSettings, Field, check, expanded, fields_of, from_flags

WATCHDOG_S = 0.2
NAV2 = "nav2"
"""The motion service that is no robot's own: nav2 decides the velocities, and the robot's plainest service walks."""
MOTION_SERVICES = (*dict.fromkeys(name for each in ROBOTS for name in robot_of(each).motion_services), NAV2)
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class Parameters(Generic[S]):
    """The parameters that one settings struct makes. Raises ValueError for a field that the struct does not have."""

    struct: type[S]
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of parameters by field, where the two are not called the same."""
    without: tuple[str, ...] = ()
    """Fields that are no parameters."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults by field, in place of the struct's own."""

    def __post_init__(self) -> None:
        known = {each.name for each in fields_of(self.struct)}
        unknown = {*self.names, *self.without, *self.defaults} - known
        if unknown:
            raise ValueError(f"{self.struct.__name__} has no {', '.join(sorted(unknown))}")

    def fields(self) -> dict[str, Field]:
        """Return the settings by parameter name. One whose default is None is left out: ROS has no such value."""
        return {
            self.names.get(each.name, each.name): each._replace(default=self.defaults.get(each.name, each.default))
            for each in fields_of(self.struct)
            if each.name not in self.without and self.defaults.get(each.name, each.default) is not None
        }

    def settings(self, values: Mapping[str, Any]) -> S:
        """Return the struct of parameter values. Raises ValueError, naming the parameter or field, for a wrong one."""
        fields = self.fields()
        for name, each in fields.items():
            if each.choices and values[name] not in each.choices:
                raise ValueError(f"parameter {name} is {values[name]!r}; choose {', '.join(each.choices)}")
        given = {each.name: tuple(values[name]) if each.many else values[name] for name, each in fields.items()}
        given |= {each.name: Path(values[name]) for name, each in fields.items() if each.kind is Path}
        return from_flags(self.struct, given)


def as_parameter(value: Any) -> Any:
    """Return a setting as a ROS parameter has it: an enum's member as its value, a path as text, a tuple as a list."""
    value = getattr(value, "value", value)
    if isinstance(value, tuple):
        return [*value]
    return value if isinstance(value, (bool, int, float)) else str(value)


def check_motion_service(name: str) -> None:
    """Raise ValueError unless it is one of `MOTION_SERVICES`."""
    if name not in MOTION_SERVICES:
        raise ValueError(f"motion_service {name!r} is none of {', '.join(MOTION_SERVICES)}")


class ManagedSettings(msgspec.Struct, frozen=True):
    """How a managed node starts."""

    autostart: Annotated[bool, Meta(description="configure and activate by itself; false: lifecycle_manager does")] = (
        False
    )


class VlmNavSettings(msgspec.Struct, frozen=True):
    """What vlm_nav depends on beside its navigator and its decoder."""

    trace: Annotated[
        str, Meta(description="file for the trace (Perfetto JSON), written whenever a goal ends; empty: none")
    ] = ""
    swap_every: Annotated[
        int,
        Meta(ge=0, le=10_000, description="answers between two tests of whether the draft model sees; 0: no tests"),
    ] = 8
    resume_within_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=RESUME_MOST_S,
            description="a goal goes on if the node that died with it is back within so many seconds; 0: never",
        ),
    ] = 60.0
    goal_folder: Annotated[
        str, Meta(description="folder of the file that keeps the running goal; empty: spec_vlm_nav in ~/.ros")
    ] = ""
    welcome_s: Annotated[float, Meta(ge=0.0, le=3600.0, description="longest wait for the verifier at start, s")] = 60.0

    def __post_init__(self) -> None:
        check(self)
        if self.trace:
            folder = expanded(self.trace).parent
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                why = f"{folder} is no folder that this user may write in"
                raise ValueError(f"trace {self.trace} cannot be written: {why}")


class ExecutorSettings(CheckedSettings, frozen=True):
    """What action_executor depends on."""

    watchdog_timeout: Annotated[float, Meta(ge=0.05, le=0.25, description="silence that holds the robot, s")] = (
        WATCHDOG_S
    )
    require_bridge: Annotated[bool, Meta(description="hold the robot while go2_bridge's heartbeat is missing")] = True
    motion_service: Annotated[
        str, Meta(description="nav2: by its behaviours, and it reads what nav2 commands; all others are go2_bridge's")
    ] = "sport"
    stamped_cmd_vel: Annotated[bool, Meta(description="cmd_vel is a TwistStamped, in base_link")] = False

    def __post_init__(self) -> None:
        check(self)
        check_motion_service(self.motion_service)


class BridgeSettings(msgspec.Struct, frozen=True):
    """Which robot go2_bridge drives and how, and when it starts and stops it. Raises ValueError for one unknown."""

    robot: Annotated[str, Meta(description=f"which robot it drives: {', '.join(ROBOTS)}")] = "go2"
    motion_service: Annotated[
        str,
        Meta(description="what walks, of a go2: sport, obstacles_avoid, which keeps off what the robot sees, or nav2"),
    ] = "sport"
    stamped_cmd_vel: Annotated[
        bool,
        Meta(description="cmd_vel is a TwistStamped; one that was stamped cmd_vel_timeout ago is too old to move on"),
    ] = False
    cmd_vel_timeout: Annotated[
        float, Meta(ge=0.05, le=0.25, description="silence of cmd_vel that stops the robot, s")
    ] = WATCHDOG_S
    stand_up_s: Annotated[
        float, Meta(ge=0.0, le=20.0, description="wait after StandUp, s: the robot ignores Move at first, silently")
    ] = 5.0

    def __post_init__(self) -> None:
        check(self)
        self.driven_robot()

    def driven_robot(self) -> Robot[Any]:
        """Return the robot with its motion service. Raises ValueError for one that it does not have."""
        check_motion_service(self.motion_service)
        robot = robot_of(self.robot)
        return robot if self.motion_service == NAV2 else robot.driven_by(self.motion_service)


class StopWatchdogSettings(msgspec.Struct, frozen=True):
    """Which robot is stopped, and after how long a silence. Raises ValueError, naming the field."""

    robot: Annotated[str, Meta(description=f"which robot it stops: {', '.join(ROBOTS)}")] = "go2"
    watchdog_timeout: Annotated[
        float, Meta(ge=0.05, le=0.25, description="silence of go2_bridge that stops the robot, s")
    ] = WATCHDOG_S

    def __post_init__(self) -> None:
        check(self)
        robot_of(self.robot)


MANAGED = Parameters(ManagedSettings)
VLM_NAV = Parameters(VlmNavSettings)
FRAMES = Parameters(FrameSettings)
NAVIGATOR = Parameters(NavigatorConfig, {"order": "response_order", "stale_s": "stale_frame_s"})
MOTION = Parameters(MotionConfig)
LIMITS = Parameters(Limits, {"vx": "max_forward_speed", "vy": "max_sideways_speed", "wz": "max_turn_speed"})
EXECUTOR = Parameters(ExecutorSettings)
BRIDGE = Parameters(BridgeSettings)
GUARD = Parameters(GuardSettings)
STOP_WATCHDOG = Parameters(StopWatchdogSettings)
