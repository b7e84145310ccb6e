"""Sends goals, subscribes and records a bag, for the demo and the tests: the only ROS part of both."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.msg import ActionStatus, DecodingStats, NavigationAction
from std_msgs.msg import Header, String
from std_srvs.srv import Trigger
from unitree_api.msg import Request

from spec_vlm_nav.client import GoalEnd
from spec_vlm_nav.client import Request as GoalRequest
from spec_vlm_nav.nodes.goal_client import GoalClient
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.robots.go2 import Go2
from vlm_nav_evaluation.bags.files import BagWriter, kind_of

ASK_S, GIVE_UP_S = 0.2, 2.0
HEARTBEATS = ("heartbeat/vlm_nav", "heartbeat/go2_bridge")
TOPICS: dict[str, tuple[Any, Any]] = {
    "camera/image/compressed": (CompressedImage, qos_profile_sensor_data),
    "odom": (Odometry, qos_profile_sensor_data),
    "cmd_vel": (Twist, 10),
    "vlm_nav/prompt": (String, 10),
    "navigation_action": (NavigationAction, 10),
    "action_status": (ActionStatus, 10),
    "decoding_stats": (DecodingStats, 10),
    "navigation_state": (String, 10),
    "instruction": (String, 10),
    "ground_truth": (String, 10),
    Go2.requests.name.lstrip("/"): (Request, 50),
    **dict.fromkeys(HEARTBEATS, (Header, 10)),
}


class Observer:
    """Subscribes in a thread of its own; a context manager. `on_message` is called there with (topic, message).

    `bag` records every topic in TOPICS as it arrives. The newest messages are in `last`. `namespace`: of the robot.
    """

    def __init__(
        self,
        on_message: Callable[[str, Any], None] = lambda *_: None,
        bag: BagWriter | None = None,
        namespace: str = "",
    ) -> None:
        self.last: dict[str, Any] = {}
        self._on_message, self._bag, self._namespace = on_message, bag, namespace
        self.active = False
        """Whether all nodes are active, as lifecycle_manager has it."""
        self._asked_at = -math.inf
        self._question: Any = None
        self._ends: list[GoalEnd] = []
        self._end = threading.Event()

    def __enter__(self) -> Observer:
        self._inits = not rclpy.ok()
        if self._inits:
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node("observer", namespace=self._namespace)
        for topic, (kind, qos) in TOPICS.items():
            self.node.create_subscription(kind, topic, partial(self._take, topic, kind), qos, raw=True)
        self.cmd_vel = self.node.create_publisher(Twist, "cmd_vel", 1)
        self._goals = GoalClient(self.node, on_end=lambda end: self._ends.append(end))
        self._manager = self.node.create_client(Trigger, "lifecycle_manager/is_active")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        steady_timer(self.node, ASK_S, self._ask_manager)
        self._thread = threading.Thread(target=self._spin, name="observer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        # Without a limit: what the thread waits on must outlive it, however slow the machine is.
        self._thread.join()
        self._goals.destroy()
        self.node.destroy_node()
        if self._inits:
            rclpy.try_shutdown()

    def ready(self) -> bool:
        """Whether all nodes are active, a frame and odometry are here, and goals are taken."""
        here = {"odom", "camera/image/compressed"} <= set(self.last)
        return self.active and here and self._goals.has_server

    @property
    def truth(self) -> dict[str, Any]:
        """Return the simulator's newest ground truth, empty before the first."""
        message = self.last.get("ground_truth")
        return dict(json.loads(message.data)) if message is not None else {}

    @property
    def speed(self) -> float:
        """Return the speed by odometry: m/s, or rad/s if that is more."""
        message = self.last.get("odom")
        if message is None:
            return 0.0
        twist = message.twist.twist
        return float(max(abs(twist.linear.x), abs(twist.linear.y), abs(twist.angular.z)))

    def send(self, instruction: str, time_s: float, dry_run: bool = False) -> list[GoalEnd]:
        """Send a goal that outlives a restart of the server; its end is put into the list that is returned."""
        self._ends = ends = list[GoalEnd]()
        self.call(lambda: self._goals.send(GoalRequest(instruction, time_s, dry_run=dry_run)))
        return ends

    def cancel(self) -> None:
        """Have the goal of `send` cancelled."""
        self.call(self._goals.cancel)

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` in the observer's thread."""
        self._executor.create_task(work)

    def _spin(self) -> None:
        while not self._end.is_set():
            self._executor.spin_once(timeout_sec=0.1)

    def _ask_manager(self) -> None:
        """Ask lifecycle_manager whether all nodes are active; a question that stays without an answer is given up."""
        now = time.monotonic()
        if self._question is not None and not self._question.done() and now - self._asked_at < GIVE_UP_S:
            return
        if self._question is not None:
            self._manager.remove_pending_request(self._question)
        if self._manager.service_is_ready():
            self._question, self._asked_at = self._manager.call_async(Trigger.Request()), now
            self._question.add_done_callback(self._on_manager)

    def _on_manager(self, future: Any) -> None:
        if not future.cancelled():
            self.active = future.result().success

    def _take(self, topic: str, kind: Any, payload: bytes) -> None:
        if self._bag is not None and topic not in HEARTBEATS:
            self._bag.write(f"/{topic}", kind_of(kind), time.time_ns(), payload)
        message = self.last[topic] = deserialize_message(payload, kind)
        self._on_message(topic, message)
