"""Twist in, the robot's requests out: `spec_vlm_nav.bridge` on ROS topics. The parameter `robot` names the robot."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from spec_vlm_nav.bridge import Bridge, battery_status
from spec_vlm_nav.diagnostics import Status
from spec_vlm_nav.guard import READERS, Guard
from spec_vlm_nav.nodes.conversions import arrival, message_type, sample_of, seconds_of
from spec_vlm_nav.nodes.heartbeat import Heartbeat
from spec_vlm_nav.nodes.managed import ManagedNode, Ticks, run_managed
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run_first
from spec_vlm_nav.nodes.subscriptions import Reader, subscribe, subscribe_latched
from spec_vlm_nav.nodes.topics import COMMAND_QOS, DRIVES, velocities_of
from spec_vlm_nav.parameters import BRIDGE, GUARD, LIMITS
from spec_vlm_nav.robot import Service, Topic
from spec_vlm_nav.safety import ZERO, Velocity

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Robots send their state up to 500 times a second; only the newest counts."""
THREADS = 3
"""A transition waits for the robot to stand, and the guard reads a cloud, while messages are taken."""
LATEST_TICK_S = 0.1
"""A thread that did not tick for so long hangs: it should do so every 20 ms."""

BATTERY_OLD_S = 5.0
"""A charge that is older than this is not shown."""

T = TypeVar("T")


class Go2Bridge(ManagedNode):
    """Gives a `Bridge` its messages and its time, 50 ticks a second. It has its name from the first robot."""

    def __init__(self, **options: Any) -> None:
        super().__init__("go2_bridge", **options)
        limits, chosen, guarded = settings(self, LIMITS), settings(self, BRIDGE), settings(self, GUARD)
        self._robot = robot = chosen.driven_robot()
        self._timeout = chosen.cmd_vel_timeout
        self._guard = None if guarded.guard == "off" else Guard(guarded)
        self._identity = time.monotonic_ns()
        self._lock = threading.Lock()
        self._bridge = Bridge(
            robot, limits, chosen, time.monotonic(), self._send, self._next_identity, self.get_logger(), self._guard
        )
        self._senders = {
            service: self.create_publisher(message_type(service.requests.kind), service.requests.name.lstrip("/"), 10)
            for service in robot.services
        }
        self._reader = reader = Reader(self)
        reader.subscribe(Bool, "e_stop", self._on_e_stop, 10)
        subscribe_latched(self, Bool, "e_stop", self._on_e_stop)
        kind, on_velocity = (TwistStamped, self._on_stamped) if chosen.stamped_cmd_vel else (Twist, self._on_twist)
        reader.subscribe(kind, velocities_of(chosen.motion_service), on_velocity, COMMAND_QOS)
        reader.subscribe(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        wanted: tuple[tuple[Topic | None, Callable[..., None], QoSProfile | int], ...] = (
            (robot.states, self._on_state, NEWEST),
            (robot.remote, self._on_remote, qos_profile_sensor_data),
            *((service.answers, partial(self._on_answer, service), 10) for service in robot.services),
        )
        for topic, take, qos in wanted:
            if topic is not None:
                reader.subscribe(message_type(topic.kind), topic.name.lstrip("/"), take, qos)
        self._battery = (b"", -math.inf)
        """The newest message about it, in CDR, and when it came: robots send many, and one a second is read."""
        if robot.battery is not None:
            kind, name = message_type(robot.battery.kind), robot.battery.name.lstrip("/")
            reader.subscribe(kind, name, self._on_battery, NEWEST, raw=True)
        self.create_service(Trigger, "~/reset", self._on_reset)
        if self._guard is not None:
            name = robot.obstacles.name.lstrip("/") if robot.obstacles is not None else "obstacles"
            look, alone = partial(self._on_obstacles, self._guard), MutuallyExclusiveCallbackGroup()
            subscribe(self, message_type(READERS[guarded.guard][0]), name, look, NEWEST, callback_group=alone)
        self._ticked_at, self._drives_to = -math.inf, self.create_publisher(Bool, DRIVES, COMMAND_QOS)
        self.heartbeat = Heartbeat(self, self._drives)
        self._thread: Ticks | None = None

    def configure(self) -> None:
        """Begin to tick."""
        self._thread = Ticks(self, self._tick, lambda: self._bridge.wait(time.monotonic()), self._reader)

    def cleanup(self) -> None:
        """Tick no more."""
        if self._thread is not None:
            self._thread.stop()

    def activate(self) -> None:
        """Begin to make the robot stand; the heartbeat begins when it does."""
        self._give(self._bridge.activate, time.monotonic())

    def deactivate(self) -> None:
        """Stop the robot, and wait until that is confirmed, for a second at most."""
        self._give(self._bridge.deactivate, time.monotonic())
        while self._give(self._bridge.ending, time.monotonic()):
            time.sleep(0.01)
        if self._bridge.unconfirmed:
            self.get_logger().error(f"the stop is not confirmed: {self._bridge.unconfirmed}; use the remote control")
        else:
            self.get_logger().info("the robot is left standing, the stop is confirmed")

    def health(self) -> Iterable[Status]:
        """Return what `/diagnostics` reports."""
        yield from self._give(self._bridge.health, time.monotonic())
        battery, came_at = self._battery
        if self._robot.battery is not None and time.monotonic() - came_at <= BATTERY_OLD_S:
            message = deserialize_message(battery, message_type(self._robot.battery.kind))
            yield battery_status(self._robot.read_battery(message))

    def _give(self, take: Callable[..., T], *given: Any) -> T:
        """Call the bridge: ticks, messages and transitions are in threads of their own."""
        with self._lock:
            return take(*given)

    def _drives(self) -> bool:
        """Return whether the robot obeys and the thread runs that would stop it."""
        return self._bridge.ready and time.monotonic() - self._ticked_at <= LATEST_TICK_S

    def _tick(self) -> None:
        self._give(self._bridge.tick, time.monotonic())
        self._ticked_at = time.monotonic()
        self._drives_to.publish(Bool(data=self._bridge.ready))

    def _on_twist(self, twist: Twist, info: Any) -> None:
        velocity = Velocity(twist.linear.x, twist.linear.y, twist.angular.z)
        self._give(self._bridge.on_velocity, velocity, arrival(info))

    def _on_stamped(self, message: TwistStamped, info: Any) -> None:
        stamp, twist = seconds_of(message.header.stamp), message.twist
        age = self.get_clock().now().nanoseconds * 1e-9 - stamp if stamp else 0.0
        stops = Velocity(twist.linear.x, twist.linear.y, twist.angular.z) == ZERO
        if age <= self._timeout or stops:
            self._on_twist(twist, info)
        else:
            why = (
                f"a cmd_vel was stamped {age:.2f} s ago, its limit is {self._timeout:g} s: is its sender's clock right?"
            )
            self.get_logger().warning(why, throttle_duration_sec=5.0)

    def _on_odometry(self, odometry: Odometry) -> None:
        self._give(self._bridge.on_odometry, sample_of(odometry, with_twist=True))

    def _on_state(self, message: Any) -> None:
        self._give(self._bridge.on_state, self._robot.read_state(message), time.monotonic())

    def _on_remote(self, message: Any) -> None:
        self._give(self._bridge.on_remote, self._robot.read_remote(message), time.monotonic())

    def _on_battery(self, message: bytes) -> None:
        self._battery = message, time.monotonic()

    def _on_e_stop(self, message: Bool) -> None:
        self._give(self._bridge.on_e_stop, message.data, time.monotonic())

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.message = self._give(self._bridge.reset, time.monotonic())
        response.success = not response.message
        return response

    def _on_answer(self, service: Service, message: Any) -> None:
        self._give(self._bridge.on_answer, self._robot.read(service, message), time.monotonic())

    def _on_obstacles(self, guard: Guard, message: Any) -> None:
        fault = guard.on_message(message, time.monotonic())
        if fault:
            self.get_logger().error(f"the guard's sensor is not used: {fault}", throttle_duration_sec=5.0)

    def _next_identity(self) -> int:
        self._identity = max(self._identity + 1, time.monotonic_ns())
        return self._identity

    def _send(self, request: Any) -> None:
        service = self._robot.service_of(request)
        message = message_type(service.requests.kind)()
        self._robot.write(request, message)
        self._senders[service].publish(message)


def main() -> None:
    """Run the node, before other programs."""
    run_first()
    sys.exit(run_managed(Go2Bridge, THREADS))


if __name__ == "__main__":
    main()
