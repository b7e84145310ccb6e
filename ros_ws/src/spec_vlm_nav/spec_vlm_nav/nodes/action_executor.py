"""NavigationAction in, Twist out: closes the loop on odometry at 20 Hz and reports how each action ended."""

from __future__ import annotations

import sys
import time
from functools import partial

from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction

from spec_vlm_nav.messages import OUTCOME_CODE, to_action
from spec_vlm_nav.motion import Motion, Outcome, PlanarPose
from spec_vlm_nav.nodes.common import COMMAND_QOS, on_heartbeat, run, sample_of, settings
from spec_vlm_nav.odometry import RECOVERY_S, OdometryCheck
from spec_vlm_nav.parameters import EXECUTOR, MOTION
from spec_vlm_nav.safety import ZERO, Velocity, Watchdogs

RATE_HZ = 20.0


class ActionExecutor(Node):
    """Runs one action at a time; a newer one, also HOLD and STOP, takes over at once.

    Publishes a Twist and an ActionStatus at every tick: both are its heartbeat.
    """

    def __init__(self) -> None:
        super().__init__("action_executor")
        self._config, depends = settings(self, MOTION), settings(self, EXECUTOR)
        names = ["odom", "vlm_nav", *(["go2_bridge"] if depends.require_bridge else [])]
        self._watchdogs = Watchdogs(names, depends.watchdog_timeout)
        self._odometry = OdometryCheck()
        self._pose: PlanarPose | None = None
        self._motion: Motion | None = None
        self._began = 0.0
        self._status = ActionStatus()
        self._held_for: tuple[str, ...] = ()
        self._twists = self.create_publisher(Twist, "cmd_vel", COMMAND_QOS)
        self._statuses = self.create_publisher(ActionStatus, "action_status", 10)
        self.create_subscription(NavigationAction, "navigation_action", self._on_action, 10)
        self.create_subscription(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        for name in names[1:]:
            on_heartbeat(self, name, partial(self._watchdogs.feed, name))
        self.create_timer(1.0 / RATE_HZ, self._tick)

    def halt(self) -> None:
        """Send a zero Twist for the last time, when the node ends."""
        self._motion = None
        self._twists.publish(Twist())
        time.sleep(0.05)

    def _on_odometry(self, odometry: Odometry) -> None:
        before, sample = self._odometry.problem, sample_of(odometry)
        self._pose, problem = self._odometry.take(sample), self._odometry.problem
        if self._pose is not None:
            self._watchdogs.feed("odom", sample.arrived)
        elif self._motion is not None:
            # Not at the next tick but now: the robot's place is unknown.
            self._finish(ActionStatus.NO_ODOMETRY, f"{problem}: the robot stands")
            self._publish(ZERO)
        if problem and not before:
            self.get_logger().error(f"{problem}: the robot stands until odometry has been sound for {RECOVERY_S:g} s")
        elif before and not problem:
            self.get_logger().info("odometry is sound again")

    def _on_action(self, message: NavigationAction) -> None:
        if (message.goal, message.step) == (self._status.goal, self._status.step) and self._status.outcome:
            # Sent again because its sender has no status of it yet.
            return
        if self._motion is not None:
            self._finish(ActionStatus.SUPERSEDED, "a newer action took over")
        now = time.monotonic()
        self._began = now
        self._status = ActionStatus(goal=message.goal, step=message.step, outcome=ActionStatus.RUNNING)
        try:
            action = to_action(message.kind, message.size)
        except ValueError as error:
            self._finish(ActionStatus.BLOCKED, f"action refused: {error}")
            return
        if action is None or action.metres == action.radians == 0.0:
            self._finish(ActionStatus.DONE, "standing")
        elif self._odometry.problem:
            self._finish(ActionStatus.NO_ODOMETRY, f"{self._odometry.problem}: the robot stands")
        elif self._pose is None or "odom" in self._watchdogs.silent(now):
            self._finish(ActionStatus.NO_ODOMETRY, "no odometry: the robot stands")
        else:
            self._motion = Motion(action, self._pose, now, self._config)

    def _tick(self) -> None:
        now = time.monotonic()
        velocity = self._advance(now) if self._motion is not None and self._pose is not None else ZERO
        self._publish(velocity)

    def _advance(self, now: float) -> Velocity:
        """Take one step of the running motion; stand while anybody it depends on is silent."""
        motion, pose = self._motion, self._pose
        if motion is None or pose is None:
            return ZERO
        silent = self._watchdogs.silent(now)
        if silent != self._held_for:
            self._held_for = silent
            self.get_logger().warning(f"standing: {', '.join(silent)} silent" if silent else "going on")
        if "odom" in silent:
            self._finish(ActionStatus.NO_ODOMETRY, "odometry went silent: the robot stands")
            return ZERO
        if silent:
            motion.paused(now)
            self._status.message = f"standing: {', '.join(silent)} silent"
            return ZERO
        self._status.message = ""
        step = motion.update(pose, now)
        self._status.progress = step.progress
        if step.outcome is not Outcome.RUNNING:
            self._finish(OUTCOME_CODE[step.outcome], step.message)
        return step.velocity

    def _finish(self, outcome: int, message: str) -> None:
        self._motion = None
        self._status.outcome, self._status.message = outcome, message
        self._stamp_status()

    def _publish(self, velocity: Velocity) -> None:
        twist = Twist()
        twist.linear.x, twist.linear.y, twist.angular.z = velocity.vx, velocity.vy, velocity.wz
        self._twists.publish(twist)
        self._stamp_status()

    def _stamp_status(self) -> None:
        self._status.header.stamp = self.get_clock().now().to_msg()
        if self._status.outcome == ActionStatus.RUNNING:
            self._status.elapsed = time.monotonic() - self._began
        self._statuses.publish(self._status)


def main() -> None:
    """Run the node."""
    sys.exit(run(ActionExecutor, ActionExecutor.halt))


if __name__ == "__main__":
    main()
