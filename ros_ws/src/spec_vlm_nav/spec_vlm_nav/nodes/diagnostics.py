"""Lines of `/diagnostics`: a node's own, and those of the robot's other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from spec_vlm_nav.diagnostics import Level, Status, text

DIAGNOSTICS_S = 1.0
"""How often a node reports."""
LIFECYCLE = "lifecycle"
"""The line that says why a managed node is not active."""
DEPTH = 100
"""Reports that may wait: every node of the machine sends some."""


def report_of(node: Node, lines: Iterable[Status]) -> DiagnosticArray:
    """Return the message of `/diagnostics` that has a node's lines."""
    report = DiagnosticArray()
    report.header.stamp = node.get_clock().now().to_msg()
    report.status = [
        DiagnosticStatus(
            level=bytes([line.level]),
            name=f"{node.get_fully_qualified_name().lstrip('/')}: {line.name}",
            message=line.message,
            values=[KeyValue(key=key, value=text(value)) for key, value in line.values.items()],
        )
        for line in lines
    ]
    return report


def status_of(line: DiagnosticStatus) -> Status:
    """Return a line of the message, its name with the node's."""
    level = Level(min(line.level[0], Level.ERROR))
    return Status(line.name, level, line.message, {each.key: each.value for each in line.values})


def on_lines(
    subscribe: Callable[..., Any], node: Node, takers: Mapping[str, Callable[[DiagnosticStatus], None]]
) -> None:
    """Call a function with every line of its name, e.g. 'go2_camera: camera', of nodes in this node's namespace.

    `subscribe` is a `Reader`'s, or the function of that name with its node.
    """
    namespace = f"{node.get_namespace()}/".lstrip("/")
    known = {namespace + name: take for name, take in takers.items()}

    def take(report: DiagnosticArray) -> None:
        for line in report.status:
            if line.name in known:
                known[line.name](line)

    subscribe(DiagnosticArray, "/diagnostics", take, DEPTH)
