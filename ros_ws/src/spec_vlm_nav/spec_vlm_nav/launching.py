"""A process graph as a ROS 2 launch description; only launch files import this."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, LogInfo, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from spec_vlm_nav.graph import GRAPHS, PACKAGE
from spec_vlm_nav.preflight import check
from spec_vlm_nav.process_graph import PARAMS_FILE, RESPAWN_S, CommandSpec, Graph, NodeSpec, RespawnPolicy
from spec_vlm_nav.runner import with_this_python

PATIENCE_S = "15"
"""Until SIGTERM follows SIGINT: a goal ends with a stop that the robot confirms, and a model takes time to unload."""

END_WITH_PARENT = "setpriv --pdeathsig TERM"
"""Put before a command (util-linux): nobody else ends the processes of a launch that is killed, or ended by SIGTERM."""
HOLD_SIGNALS = "env --block-signal=INT,TERM"
"""Put before a command of ours (coreutils 8.32): a signal waits until `speculation.program_exit` takes it.

Before that, while Python itself starts, Ctrl-C would be a traceback and a process that has died.
"""


def describe(graph: Graph) -> LaunchDescription:
    """Return the launch description of `graph`, with its arguments declared and described.

    No process starts unless all arguments can be used.
    """
    declarations = []
    for argument in graph.arguments:
        options = {"choices": list(argument.choices)} if argument.choices and argument.default else {}
        declarations.append(
            DeclareLaunchArgument(
                argument.name, default_value=argument.default, description=argument.description, **options
            )
        )
    return LaunchDescription([*declarations, OpaqueFunction(function=_start, args=[graph])])


def _start(context: Any, graph: Graph) -> list[Any]:
    """Return all processes, or raise ValueError, naming the argument that cannot be used."""
    given = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in graph.arguments}
    # Launch takes any name; a file that includes this one may have arguments of its own, none of which is a slip.
    strangers = [name for name in context.launch_configurations if name not in given]
    slips = [name for name in _typed() if name in strangers and get_close_matches(name, given, 1, 0.7)]
    values = graph.values({**given, **dict.fromkeys(slips, "")})
    check(graph, values)
    ignored = [LogInfo(msg=f"argument {name} is unknown and ignored") for name in strangers]
    return ignored + [
        _node(graph, process, values) if isinstance(process, NodeSpec) else _command(graph, process, values)
        for process in graph.started(values)
    ]


def _typed() -> list[str]:
    """Return the names of the arguments that a user gave to one of our own launch files on the command line."""
    words = sys.argv[1:]
    own = any(Path(word).name in (f"{name}.launch.py" for name in GRAPHS) for word in words)
    return [word.partition(":=")[0] for word in words if ":=" in word] if own else []


def _node(graph: Graph, spec: NodeSpec, values: dict[str, str]) -> Node:
    config = str(Path(get_package_share_directory(PACKAGE)) / "config" / spec.config)
    files = [config, *(path for path in (values[PARAMS_FILE],) if path)]
    given = graph.given(spec, values)
    return Node(
        package=PACKAGE,
        executable=spec.name,
        name=spec.name,
        exec_name=spec.name,
        namespace=values["namespace"],
        parameters=[*files, *([given] if given else ())],
        remappings=graph.remaps(spec, values),
        ros_arguments=["--log-level", values["log_level"]],
        output="screen",
        **_at_its_end(spec),
    )


def _command(graph: Graph, spec: CommandSpec, values: dict[str, str]) -> ExecuteProcess:
    command = with_this_python(graph.command(spec, values))
    return ExecuteProcess(cmd=command, name=spec.name, output="screen", **_at_its_end(spec))


def _at_its_end(spec: NodeSpec | CommandSpec) -> dict[str, Any]:
    """Return how a process is started again, and what ends everything.

    Launch starts a process again without a limit, or none that all versions have; the limit is kept here.
    """
    again = {"respawn": True, "respawn_delay": RESPAWN_S} if spec.respawns else {}
    is_ours = isinstance(spec, NodeSpec) or spec.command[0] == "python3"
    before = [HOLD_SIGNALS] if is_ours and _works(HOLD_SIGNALS) else []
    before += [END_WITH_PARENT] if _works(END_WITH_PARENT) else []
    with_launch = {"prefix": " ".join(before)} if before else {}
    return {**again, **with_launch, "sigterm_timeout": PATIENCE_S, "on_exit": _on_exit(spec)}


@lru_cache
def _works(prefix: str) -> bool:
    """Return whether this machine's version of a program takes these options."""
    try:
        return subprocess.run([*prefix.split(), "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _on_exit(spec: NodeSpec | CommandSpec) -> Callable[[Any, Any], Shutdown | None]:
    policy = RespawnPolicy(spec)

    def ended(event: Any, context: Any) -> Shutdown | None:
        """Raise RuntimeError for a failure: an exception is what gives `ros2 launch` a status other than 0."""
        if context.is_shutdown or policy.should_respawn(event.returncode):
            return None
        return Shutdown(reason=f"{spec.name} has done its work")

    return ended
