"""The simulated robot's node: a camera that takes its time holds up nothing else."""

from __future__ import annotations

import threading

import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from unitree_go.msg import SportModeState

from spec_vlm_nav.nodes.sim_go2 import SimGo2
from spec_vlm_nav.simulated_go2 import SimulatedGo2
from tests.system.conftest import until
from tests.system.spinning import Spinning


def test_odometry_and_state_do_not_wait_for_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    rendering, rendered, frame = threading.Event(), threading.Event(), SimulatedGo2.frame

    def slow_frame(robot: SimulatedGo2) -> bytes:
        # The first frame shows that rendering works here; it is drawn before anything moves.
        if first:
            rendering.set()
            rendered.wait(120.0)
        first.append(True)
        return frame(robot)

    first: list[bool] = []
    monkeypatch.setattr(SimulatedGo2, "frame", slow_frame)
    rclpy.init(args=["--ros-args", "-p", "image_size:=56"])
    listener = Node("listener")
    poses: list[Odometry] = []
    states: list[SportModeState] = []
    listener.create_subscription(Odometry, "odom", poses.append, qos_profile_sensor_data)
    listener.create_subscription(SportModeState, "sportmodestate", states.append, qos_profile_sensor_data)
    spinning, simulated = Spinning(listener), SimGo2()
    try:
        assert rendering.wait(120.0)
        before = len(poses), len(states)
        until(lambda: len(poses) > before[0] + 5 and len(states) > before[1] + 5, "messages while a frame is rendered")
    finally:
        rendered.set()
        simulated.close()
        simulated.destroy_node()
        spinning.close()
        rclpy.shutdown()
