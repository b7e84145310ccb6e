"""The RViz layout against the nodes: every topic is published, with a type and a QoS that its display can take."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any, NamedTuple

import pytest
import yaml

from spec_vlm_nav.runner import SOURCE

LAYOUT: dict[str, Any] = yaml.safe_load((SOURCE / "config" / "nav.rviz").read_text())["Visualization Manager"]
TAKES = {
    "Image": {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"},
    "Odometry": {"nav_msgs/msg/Odometry"},
}
QOS = {
    "NEWEST": ("Reliable", "Volatile"),
    "qos_profile_sensor_data": ("Best Effort", "Volatile"),
}
"""What a publisher offers, by the name in its node's source: a display that wants more gets nothing, in silence."""
WITH_TOPIC = [display for display in LAYOUT["Displays"] if "Topic" in display]


class Publisher(NamedTuple):
    """A publisher whose topic is written in a node's source."""

    kind: str
    qos: str
    """As it is written there."""


@cache
def publishers() -> dict[str, Publisher]:
    """Return them by topic."""
    found = {}
    for path in (SOURCE / "spec_vlm_nav" / "nodes").glob("*.py"):
        tree = ast.parse(path.read_text())
        packages = {
            alias.name: node.module.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.endswith(".msg")
            for alias in node.names
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "create_publisher":
                kind, topic, qos = call.args[:3]
                # of two types the one without its parameter
                kind = kind.orelse if isinstance(kind, ast.IfExp) else kind
                if isinstance(kind, ast.Name) and isinstance(topic, ast.Constant) and kind.id in packages:
                    name = f"/{topic.value.lstrip('/')}"
                    found[name] = Publisher(f"{packages[kind.id]}/msg/{kind.id}", ast.unparse(qos))
    return found


@pytest.mark.parametrize("display", WITH_TOPIC, ids=lambda display: display["Name"])
def test_every_display_gets_what_it_shows(display: dict[str, Any]) -> None:
    topic = display["Topic"]
    assert topic["Value"] in publishers(), f"no node publishes {topic['Value']}"
    found = publishers()[topic["Value"]]
    kind = display["Class"].rpartition("/")[2]
    assert found.kind in TAKES[kind]
    assert (topic["Reliability Policy"], topic["Durability Policy"]) == QOS[found.qos]
    if found.kind.endswith("CompressedImage"):
        assert topic["Value"].endswith("/compressed"), "RViz finds the transport in the name"
