"""Twist in, sport requests out, last before the robot: clamps, limits slew, watches, and confirms its stops."""

from __future__ import annotations

import math
import sys
import time

from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from unitree_api.msg import Request, Response

from spec_vlm_nav.go2_protocol import (
    REQUEST_TOPIC,
    RESPONSE_TOPIC,
    Confirmed,
    SportApi,
    SportRequest,
    describe,
    move,
    request,
)
from spec_vlm_nav.nodes.common import COMMAND_QOS, Heartbeat, run, sample_of, settings
from spec_vlm_nav.odometry import OdometryCheck
from spec_vlm_nav.parameters import BRIDGE, LIMITS
from spec_vlm_nav.safety import ZERO, SlewLimiter, Velocity, Watchdog

RATE_HZ = 20.0
STOP_RETRY_S, STAND_RETRY_S = 0.1, 1.0
STILL = 0.03
"""Odometry below this (m/s, rad/s) is a robot that stands."""


class Go2Bridge(Node):
    """Sends Move at 20 Hz while Twists arrive and StopMove, until confirmed, when they do not."""

    def __init__(self) -> None:
        super().__init__("go2_bridge")
        self._limits, bridge = settings(self, LIMITS), settings(self, BRIDGE)
        self._watchdog = Watchdog(bridge.cmd_vel_timeout)
        self._slew = SlewLimiter(self._limits)
        self._wanted = ZERO
        self._odometry, self._speed = OdometryCheck(), 0.0
        self._last_tick = time.monotonic()
        self._stopping: Confirmed | None = None
        self._identity = time.monotonic_ns()
        self._ready = self._ended = False
        self._requests = self.create_publisher(Request, REQUEST_TOPIC.lstrip("/"), 10)
        self.create_subscription(Response, RESPONSE_TOPIC.lstrip("/"), self._on_response, 10)
        self.create_subscription(Twist, "cmd_vel", self._on_twist, COMMAND_QOS)
        self.create_subscription(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        self._stand_up = Confirmed(SportApi.STAND_UP, self._next_identity, STAND_RETRY_S)
        self._balance = Confirmed(SportApi.BALANCE_STAND, self._next_identity, STAND_RETRY_S)
        self._settle, self._stood_at = bridge.stand_up_s, math.inf
        self._heartbeat = Heartbeat(self, lambda: self._ready)
        self.create_timer(1.0 / RATE_HZ, self._tick)

    def stop(self) -> None:
        """Send a StopMove for the last time, when the node ends."""
        self._ended = True
        self._send(request(SportApi.STOP_MOVE, self._next_identity()))
        self.get_logger().info("StopMove sent: the bridge ends")
        # The middleware sends in the background; an immediate exit could drop the message.
        time.sleep(0.1)

    def _tick(self) -> None:
        now = time.monotonic()
        dt, self._last_tick = min(now - self._last_tick, 0.25), now
        if self._ended:
            # Ticks go on while the node closes; a Move now would undo the StopMove.
            return
        if not self._ready:
            self._get_ready(now)
        elif self._watchdog.expired(now):
            self._keep_stopping(now, "cmd_vel is silent")
        elif not self._wanted.finite:
            self._keep_stopping(now, "cmd_vel is not finite")
        else:
            self._stopping = None
            self._send(move(self._slew.step(self._wanted, dt), self._limits, self._next_identity()))

    def _get_ready(self, now: float) -> None:
        """StandUp, confirmed; time to settle; BalanceStand, confirmed. Only then is cmd_vel taken."""
        if not self._stand_up.done:
            call = self._stand_up.due(now)
            if call is not None:
                self._send(call)
                self.get_logger().info("StandUp; waiting for the robot's answer", throttle_duration_sec=5.0)
        elif self._stood_at == math.inf:
            self._stood_at = now
        elif now - self._stood_at >= self._settle and not self._balance.done:
            call = self._balance.due(now)
            if call is not None:
                self._send(call)
        elif self._balance.done:
            self._ready = True
            self.get_logger().info("standing and balanced: taking cmd_vel")

    def _keep_stopping(self, now: float, why: str) -> None:
        """Repeat StopMove until the robot answered it and, where odometry is known, stands."""
        if self._stopping is None:
            self._stopping = Confirmed(SportApi.STOP_MOVE, self._next_identity, STOP_RETRY_S)
            self._slew.reset()
            self.get_logger().warning(f"StopMove: {why}")
        if self._speed > STILL:
            self._stopping.reopen()
        if self._odometry.problem:
            self.get_logger().warning(f"StopMove is repeated: {self._odometry.problem}", throttle_duration_sec=5.0)
        call = self._stopping.due(now)
        if call is not None:
            self._send(call)

    def _on_twist(self, twist: Twist) -> None:
        self._wanted = Velocity(twist.linear.x, twist.linear.y, twist.angular.z)
        self._watchdog.feed(time.monotonic())
        if not self._wanted.finite and self._ready and not self._ended:
            # Not at the next tick but now: a sender of NaN has lost control.
            self._keep_stopping(time.monotonic(), "cmd_vel is not finite")

    def _on_odometry(self, odometry: Odometry) -> None:
        twist = odometry.twist.twist
        if self._odometry.take(sample_of(odometry, with_twist=True)) is None:
            # Odometry that is wrong shows no standing robot: StopMove is repeated until it is sound again.
            self._speed = math.inf
        else:
            self._speed = max(math.hypot(twist.linear.x, twist.linear.y), abs(twist.angular.z))

    def _on_response(self, response: Response) -> None:
        identity, code = response.header.identity, response.header.status.code
        if code:
            problem = f"sport api {identity.api_id}: {describe(code)}"
            self.get_logger().error(problem, throttle_duration_sec=1.0)
        for call in (self._stand_up, self._balance, self._stopping):
            if call is not None:
                call.answered(identity.id, code)

    def _next_identity(self) -> int:
        self._identity = max(self._identity + 1, time.monotonic_ns())
        return self._identity

    def _send(self, call: SportRequest) -> None:
        message = Request(parameter=call.parameter)
        message.header.identity.id = call.identity
        message.header.identity.api_id = call.api_id
        message.header.policy.noreply = call.noreply
        self._requests.publish(message)


def main() -> None:
    """Run the node."""
    sys.exit(run(Go2Bridge, Go2Bridge.stop))


if __name__ == "__main__":
    main()
