"""Relays topics between nodes and can cut, delay or garble them; notes every command to move on its way."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.msg import NavigationAction
from std_msgs.msg import Bool, Header
from unitree_api.msg import Request

from spec_vlm_nav.nodes.process import NICENESS, SWITCH_S
from spec_vlm_nav.nodes.topics import DRIVES
from spec_vlm_nav.robots.go2 import Go2, SportApi
from speculation.links import EmulatedWay, WayConditions
from vlm_nav_evaluation.link_loss.faults import Kind, process_of

_RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
REQUESTS = Go2.requests.name.lstrip("/")


@dataclass(frozen=True)
class Relayed:
    """A topic that goes through the relay."""

    name: str
    kind: Any
    qos: Any
    part: str
    """Which part publishes it, see `PARTS`; or the watchdog, which has no faults here."""

    @property
    def raw(self) -> str:
        """Return the name under which its own node publishes it."""
        return f"raw/{self.part}/{self.name}"


def _nan_twist(_: bytes) -> Any:
    message = Twist()
    message.linear.x = message.angular.z = math.nan
    return message


def _nan_odometry(payload: bytes) -> Any:
    message = deserialize_message(payload, Odometry)
    message.pose.pose.position.x = math.nan
    return message


def _no_image(payload: bytes) -> Any:
    message = deserialize_message(payload, CompressedImage)
    message.data = bytes(range(256))
    return message


def _no_action(payload: bytes) -> Any:
    message = deserialize_message(payload, NavigationAction)
    message.kind, message.size, message.speed_scale = 77, 99, math.nan
    return message


RELAYED = (
    Relayed("odom", Odometry, qos_profile_sensor_data, "robot"),
    Relayed("camera/image/compressed", CompressedImage, qos_profile_sensor_data, "camera"),
    Relayed("navigation_action", NavigationAction, _RELIABLE, "vlm_nav"),
    Relayed("heartbeat/vlm_nav", Header, _RELIABLE, "vlm_nav"),
    Relayed("cmd_vel", Twist, _RELIABLE, "action_executor"),
    Relayed(REQUESTS, Request, _RELIABLE, "go2_bridge"),
    Relayed("heartbeat/go2_bridge", Header, _RELIABLE, "go2_bridge"),
    Relayed(DRIVES, Bool, _RELIABLE, "go2_bridge"),
    Relayed(REQUESTS, Request, _RELIABLE, "stop_watchdog"),
)
GARBAGE: Mapping[str, Callable[[bytes], Any]] = {
    "odom": _nan_odometry,
    "camera/image/compressed": _no_image,
    "navigation_action": _no_action,
    "cmd_vel": _nan_twist,
}
"""What a topic carries in place of its messages."""


def remaps(process: str) -> tuple[tuple[str, str], ...]:
    """Return the names under which a process publishes what goes through the relay."""
    return tuple((each.name, each.raw) for each in RELAYED if process_of(each.part) == process)


class FaultRelay(Node):
    """Give it to an executor of its own. Times are this machine's steady clock, seconds."""

    def __init__(self, delay_s: float, context: Context) -> None:
        super().__init__("fault_relay", context=context)
        self.faults: dict[str, Kind] = {}
        """What becomes of a part's messages; they pass where none is named."""
        self._delayed: EmulatedWay[tuple[Any, bytes]] = EmulatedWay(WayConditions(delay_s))
        self._lock = threading.Lock()
        self._commands: dict[str, list[tuple[float, float]]] = {"cmd_vel": [], REQUESTS: []}
        for each in RELAYED:
            out = self.create_publisher(each.kind, each.name, each.qos)
            group = MutuallyExclusiveCallbackGroup()
            take = partial(self._take, each, out)
            self.create_subscription(each.kind, each.raw, take, each.qos, callback_group=group, raw=True)
        self.create_timer(0.01, self._send_due, callback_group=MutuallyExclusiveCallbackGroup())

    def commands(self, topic: str, since: float) -> list[tuple[float, float]]:
        """Return (time, largest commanded speed) of every command of `cmd_vel` or of the requests since a time."""
        with self._lock:
            return [each for each in self._commands[topic] if each[0] >= since]

    def _take(self, topic: Relayed, out: Any, payload: bytes) -> None:
        now = time.monotonic()
        if topic.name in self._commands:
            self._note(topic, payload, now)
        fault = self.faults.get(topic.part)
        if fault is Kind.CUT:
            return
        if fault is Kind.DELAY:
            with self._lock:
                self._delayed.put((out, payload), len(payload), now)
            return
        garbage = GARBAGE.get(topic.name) if fault is Kind.GARBAGE else None
        out.publish(payload if garbage is None else serialize_message(garbage(payload)))

    def _send_due(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = list(iter(partial(self._delayed.take, now), None))
        for out, payload in due:
            out.publish(payload)

    def _note(self, topic: Relayed, payload: bytes, now: float) -> None:
        message = deserialize_message(payload, topic.kind)
        if topic.kind is Twist:
            speed = max(abs(message.linear.x), abs(message.linear.y), abs(message.angular.z))
        elif message.header.identity.api_id == SportApi.MOVE:
            speed = max(abs(value) for value in json.loads(message.parameter).values())
        elif message.header.identity.api_id == SportApi.STOP_MOVE:
            speed = 0.0
        else:
            return
        with self._lock:
            self._commands[topic.name].append((now, speed))


@contextmanager
def _threads_first() -> Iterator[None]:
    """Let this thread, and those that it starts within the block, run before others where the system lets it."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, before + NICENESS)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def relaying(delay_s: float) -> Iterator[FaultRelay]:
    """Run a relay in threads of its own, in a ROS context of its own.

    The threads run before other programs and change often: a wire does not wait for a model that computes.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    end = threading.Event()
    with _threads_first():
        node = FaultRelay(delay_s, context)
        executor = MultiThreadedExecutor(4, context=context)
        executor.add_node(node)

        def spin() -> None:
            while not end.is_set():
                executor.spin_once(timeout_sec=0.1)

        thread = threading.Thread(target=spin, name="relay", daemon=True)
        thread.start()
    try:
        yield node
    finally:
        end.set()
        thread.join()
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.try_shutdown(context=context)
        sys.setswitchinterval(interval)
