"""The RViz layout against the nodes: every topic is published, with a type and a QoS that its display can take."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from spec_vlm_nav.runner import SOURCE
from tests.spec_vlm_nav.test_foxglove import publishers

LAYOUT: dict[str, Any] = yaml.safe_load((SOURCE / "config" / "nav.rviz").read_text())["Visualization Manager"]
TAKES = {
    "Image": {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"},
    "MarkerArray": {"visualization_msgs/msg/MarkerArray"},
    "Odometry": {"nav_msgs/msg/Odometry"},
    "Path": {"nav_msgs/msg/Path"},
}
QOS = {
    "LATCHED": ("Reliable", "Transient Local"),
    "NEWEST": ("Reliable", "Volatile"),
    "qos_profile_sensor_data": ("Best Effort", "Volatile"),
}
"""What a publisher offers, by the name in its node's source: a display that wants more gets nothing, in silence."""
WITH_TOPIC = [display for display in LAYOUT["Displays"] if "Topic" in display]


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
