"""Just enough of launch and launch_ros to load our launch files: constructors that keep their arguments.

The keyword names are those of launch 3.4 and launch_ros 0.26 (Jazzy), so a misspelt one fails here as it would there.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LaunchDescription:
    entities: list[Any]


@dataclass
class Context:
    """What a launch knows; `is_shutdown` as launch.LaunchContext has it."""

    launch_configurations: dict[str, str]
    is_shutdown: bool = False


@dataclass
class ProcessExited:
    returncode: int


@dataclass
class DeclareLaunchArgument:
    name: str
    default_value: str | None = None
    description: str | None = None
    choices: list[str] | None = None


@dataclass
class LaunchConfiguration:
    variable_name: str

    def perform(self, context: Context) -> str:
        return context.launch_configurations[self.variable_name]


@dataclass(kw_only=True)
class ExecuteProcess:
    cmd: list[str]
    name: str
    output: str
    on_exit: Any = None
    respawn: bool = False
    respawn_delay: float | None = None
    sigterm_timeout: str = "5"
    prefix: str | None = None


@dataclass
class OpaqueFunction:
    function: Callable[..., Any]
    args: list[Any] = field(default_factory=list)


@dataclass
class LogInfo:
    msg: str


@dataclass
class Shutdown:
    reason: str = ""


@dataclass(kw_only=True)
class Node(ExecuteProcess):
    package: str
    executable: str
    exec_name: str
    namespace: str
    parameters: list[Any]
    remappings: list[tuple[str, Any]]
    ros_arguments: list[Any]
    cmd: None = field(default=None, init=False)


def start(entities: list[Any], **given: str) -> list[Any]:
    """Return the processes that a description starts with these arguments, after its declarations."""
    declared = [entity for entity in entities if isinstance(entity, DeclareLaunchArgument)]
    context = Context({entry.name: entry.default_value or "" for entry in declared} | given)
    opaque = [entity for entity in entities if isinstance(entity, OpaqueFunction)]
    return [made for entity in opaque for made in entity.function(context, *entity.args)]


def modules(share: str) -> dict[str, types.ModuleType]:
    """Return the fakes by module name; `share` is what the ament index answers."""
    made: dict[str, types.ModuleType] = {}

    def module(name: str, **members: Any) -> None:
        made[name] = types.ModuleType(name)
        vars(made[name]).update(members)

    module("launch", LaunchDescription=LaunchDescription)
    module(
        "launch.actions",
        DeclareLaunchArgument=DeclareLaunchArgument,
        ExecuteProcess=ExecuteProcess,
        LogInfo=LogInfo,
        OpaqueFunction=OpaqueFunction,
        Shutdown=Shutdown,
    )
    module("launch.substitutions", LaunchConfiguration=LaunchConfiguration)
    module("launch_ros")
    module("launch_ros.actions", Node=Node)
    if "ament_index_python" not in sys.modules:
        module("ament_index_python")
    module("ament_index_python.packages", get_package_share_directory=lambda _: share)
    return made
