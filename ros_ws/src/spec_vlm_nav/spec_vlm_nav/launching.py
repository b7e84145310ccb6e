"""A process graph as a ROS 2 launch description; only launch files import this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from spec_vlm_nav.graph import PACKAGE, Argument, CommandSpec, Graph, NodeSpec, Use, Value, command_line
from spec_vlm_nav.runner import with_this_python

NAMESPACE = Argument("namespace", "", "namespace of all nodes, for several robots in one ROS domain")
LOG_LEVEL = Argument("log_level", "info", "how much the nodes log", ("debug", "info", "warn", "error"))


def describe(graph: Graph) -> LaunchDescription:
    """Return the launch description of `graph`, with its arguments declared and described."""
    declarations = []
    for argument in (*graph.arguments, NAMESPACE, LOG_LEVEL):
        options = {"choices": list(argument.choices)} if argument.choices else {}
        declarations.append(
            DeclareLaunchArgument(
                argument.name, default_value=argument.default, description=argument.description, **options
            )
        )
    entities = [
        _node(graph, process) if isinstance(process, NodeSpec) else OpaqueFunction(function=_command, args=[process])
        for process in graph.processes
    ]
    return LaunchDescription([*declarations, *entities])


def _node(graph: Graph, spec: NodeSpec) -> Node:
    config = str(Path(get_package_share_directory(PACKAGE)) / "config" / spec.config)
    return Node(
        package=PACKAGE,
        executable=spec.executable,
        name=spec.name,
        namespace=LaunchConfiguration(NAMESPACE.name),
        parameters=[config, {name: _parameter(graph, value) for name, value in spec.parameters}],
        remappings=[
            (name, LaunchConfiguration(value.name) if isinstance(value, Use) else str(value))
            for name, value in spec.remaps
        ],
        ros_arguments=["--log-level", LaunchConfiguration(LOG_LEVEL.name)],
        output="screen",
        **_on_exit(spec),
    )


def _parameter(graph: Graph, value: Value) -> Any:
    if not isinstance(value, Use):
        return value
    return ParameterValue(LaunchConfiguration(value.name), value_type=graph.argument(value.name).kind)


def _command(context: Any, spec: CommandSpec) -> list[ExecuteProcess]:
    """Build a process when its arguments are known: a flag whose value is empty is left out."""
    names = [part.name for part in spec.command if isinstance(part, Use)]
    values = {name: LaunchConfiguration(name).perform(context) for name in names}
    command = with_this_python(command_line(spec, values))
    return [ExecuteProcess(cmd=command, name=spec.name, output="screen", **_on_exit(spec))]


def _on_exit(spec: NodeSpec | CommandSpec) -> dict[str, Any]:
    return {"on_exit": Shutdown(reason=f"{spec.name} ended")} if spec.essential else {}
