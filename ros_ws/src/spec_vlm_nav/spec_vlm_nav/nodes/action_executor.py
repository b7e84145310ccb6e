"""NavigationAction in, Twist out: `spec_vlm_nav.executor` on ROS topics, 50 ticks a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from rclpy.qos import qos_profile_sensor_data
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction

from spec_vlm_nav.diagnostics import Arrivals, Level, Status
from spec_vlm_nav.executor import RATE_HZ, Command, Executor, Report
from spec_vlm_nav.motion import Motion
from spec_vlm_nav.nav2 import GRACE_S, Nav2Motion
from spec_vlm_nav.nodes.conversions import arrival, sample_of
from spec_vlm_nav.nodes.diagnostics import on_lines
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.managed import ManagedNode, Ticks, run_managed
from spec_vlm_nav.nodes.nav2_client import Nav2Client
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run_first
from spec_vlm_nav.nodes.subscriptions import Reader
from spec_vlm_nav.nodes.topics import COMMAND_QOS, velocities_of
from spec_vlm_nav.odometry import RECOVERY_S, frames_problem
from spec_vlm_nav.parameters import EXECUTOR, MOTION, NAV2
from spec_vlm_nav.safety import ZERO, Velocity

STANDING_TICKS = 2
"""Every so many ticks a status, and a Twist of a robot that stands: both are the node's heartbeat, 25 Hz."""
STOP_TICKS = 3
"""How often the last zero Twist is sent."""
NAV2_S = 60.0
"""How long nav2's action servers are waited for in configure."""
TAKEN_S = 5.0
"""How long somebody is waited for who takes the velocities."""
THREADS = 2
"""A transition waits for nav2 while nav2's messages are taken."""
LINGER_S = 2.0
"""How long it waits at its end for a vlm_nav that ends at the same time."""
STANDING = {NavigationAction.HOLD, NavigationAction.STOP, NavigationAction.NOT_HERE}


class ActionExecutor(ManagedNode):
    """Gives an `Executor` its messages and its time.

    While the node is not active it publishes nothing, but that it stands where it is asked to.
    """

    def __init__(self) -> None:
        super().__init__("action_executor")
        motion, chosen = settings(self, MOTION), settings(self, EXECUTOR)
        names = ("vlm_nav", *(("go2_bridge",) if chosen.require_bridge else ()))
        self._lock = threading.Lock()
        uses_nav2, timeout = chosen.motion_service == NAV2, chosen.watchdog_timeout
        self._nav2 = Nav2Client(self, self._lock, timeout) if uses_nav2 else None
        move = Motion if self._nav2 is None else partial(Nav2Motion, self._nav2.logic)
        self._logic = Executor(motion, names, timeout, self._on_end, move)
        self._odometry_rate = Arrivals()
        self._frames: tuple[str, str] | None = None
        self._frames_problem = self._unlogged = ""
        self._ticks, self._commanded, self._causes = 0, ZERO, ("", False)
        self._stamped = chosen.stamped_cmd_vel
        self._twist_kind = TwistStamped if self._stamped else Twist
        self._twists = self.create_publisher(self._twist_kind, velocities_of(chosen.motion_service), COMMAND_QOS)
        self._statuses = self.create_publisher(ActionStatus, "action_status", 10)
        self._reader = Reader(self)
        for name in names:
            on_heartbeat(self._reader.subscribe, name, partial(self._on_heartbeat, name))
        self._reader.subscribe(Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        self._reader.subscribe(NavigationAction, "navigation_action", self._on_action, 10)
        if self._nav2 is not None:
            self._reader.subscribe(self._twist_kind, "cmd_vel", self._on_nav2_velocity, COMMAND_QOS)
        # Of the bridge alone: with an e-stop nobody should look for a dead process.
        on_lines(self._reader.subscribe, self, {"go2_bridge: robot": self._on_bridge_line})
        self._thread: Ticks | None = None

    def configure(self) -> None:
        """Begin to tick, with nav2 once its action servers are there."""
        if self._nav2 is not None:
            self._wait_for(self._nav2)
        self._thread = Ticks(self, self._tick, lambda: self._logic.wait(time.monotonic()), self._reader)

    def cleanup(self) -> None:
        """Tick no more."""
        if self._thread is not None:
            self._thread.stop()

    def activate(self) -> None:
        """Check that somebody takes what is let pass of nav2's velocities."""
        until = time.monotonic() + TAKEN_S
        while self._nav2 is not None and not self._twists.get_subscription_count():
            if time.monotonic() > until or self.ending:
                raise RuntimeError(f"nobody takes {self._twists.topic_name}: go2_bridge needs motion_service nav2, too")
            time.sleep(0.1)

    def deactivate(self) -> None:
        """End the action and repeat the stop."""
        with self._lock:
            now = time.monotonic()
            self._logic.halt(self.problem, now)
            if self._nav2 is not None:
                self._nav2.logic.end(now)
        # What is confirmed meanwhile, as a HOLD of a vlm_nav that ends too, stays confirmed.
        for _ in range(STOP_TICKS):
            with self._lock:
                self._publish_twist()
            time.sleep(1.0 / RATE_HZ)

    def end(self) -> None:
        """End the action at once; then go on to confirm what vlm_nav ends its goal with, until that is gone."""
        self.ending = True
        self._stop_acting("the node ends")
        until = time.monotonic() + LINGER_S
        while self._thread is not None and time.monotonic() < until and self.count_publishers("navigation_action"):
            time.sleep(1.0 / RATE_HZ)
        self.cleanup()

    def health(self) -> Iterable[Status]:
        """Return the action, odometry, and who is silent."""
        with self._lock:
            now = time.monotonic()
            report, silent = self._logic.report(now), self._logic.silent(now)
            problem, doubt = self._logic.problem(now), self._logic.odometry_doubt or self._frames_problem
            rate, age = self._odometry_rate.rate(now), self._odometry_rate.age(now)
            rhythm, response = self._logic.rhythm, self._logic.response
            seen = {"rate_hz": rate, "gap_s": rhythm.gap, "limit_s": rhythm.limit}
            seen |= {"lag_s": response.lag} if response.known else {}
        fields = {"goal", "step", "outcome", "kind", "size", "progress", "remaining", "elapsed"}
        values = {name: value for name, value in asdict(report).items() if name in fields}
        yield Status("action", Level.OK, report.message or ("running" if report.outcome else "idle"), values)
        seen |= {} if age is None else {"age_s": age}
        level = Level.ERROR if problem else Level.WARN if doubt else Level.OK
        yield Status("odometry", level, problem or doubt or "sound", seen)
        message = f"silent: {', '.join(silent)}" if silent else "nobody is silent"
        yield Status("watchdogs", Level.ERROR if silent else Level.OK, message)
        if self._nav2 is not None:
            yield self._nav2.health()

    def _on_heartbeat(self, name: str, now: float) -> None:
        with self._lock:
            self._logic.on_heartbeat(name, now)

    def _on_bridge_line(self, line: DiagnosticStatus) -> None:
        cause = "" if line.level == DiagnosticStatus.OK else line.message
        with self._lock:
            self._logic.on_cause("go2_bridge", cause, time.monotonic())

    def _on_odometry(self, odometry: Odometry, info: Mapping[str, Any]) -> None:
        self._look_at_frames(odometry.header.frame_id, odometry.child_frame_id)
        sample = replace(sample_of(odometry, with_twist=True), arrived=arrival(info))
        with self._lock:
            self._odometry_rate.note(sample.arrived)
            self._logic.on_odometry(sample)
            self._stop_now()

    def _wait_for(self, nav2: Nav2Client) -> None:
        """Return once nav2's action servers are known. Raises RuntimeError, naming them, for those that are not."""
        until = time.monotonic() + NAV2_S
        while (missing := nav2.missing()) and not self.ending:
            self.problem = f"it waits for nav2's action servers {missing}"
            self.get_logger().info(f"waiting for nav2's action servers {missing}", throttle_duration_sec=10.0)
            if time.monotonic() > until:
                raise RuntimeError(f"nav2's action servers {missing} are not there within {NAV2_S:g} s: start nav2")
            time.sleep(0.1)

    def _on_nav2_velocity(self, message: Any, info: Mapping[str, Any]) -> None:
        twist = message.twist if self._stamped else message
        velocity = Velocity(twist.linear.x, twist.linear.y, twist.angular.z)
        with self._lock:
            if self._nav2 is not None:
                self._nav2.logic.on_velocity(velocity, arrival(info))
            self._stop_now()

    def _look_at_frames(self, fixed: str, body: str) -> None:
        """Warn once of frames that cannot be odometry's. Poses are what the robot moves on, so it is not stopped."""
        if self._frames != (fixed, body):
            self._frames, self._frames_problem = (fixed, body), frames_problem(fixed, body)
            if self._frames_problem:
                self.get_logger().warning(self._frames_problem, throttle_duration_sec=60.0)

    def _on_action(self, message: NavigationAction) -> None:
        with self._lock:
            if not self.active and message.kind not in STANDING:
                return
            command = Command(
                message.goal, message.step, message.kind, message.size, message.complete, message.speed_scale
            )
            now = time.monotonic()
            self._logic.on_command(command, now)
            if self.active:
                self._publish_twist()
            else:
                # No tick repeats it: the answer to a repeated command is what makes up for one that was lost.
                self._publish_status(self._logic.report(now))

    def _tick(self) -> None:
        with self._lock:
            if not self.active:
                return
            now = time.monotonic()
            self._logic.tick(now)
            self._ticks += 1
            standing = self._ticks % STANDING_TICKS == 0
            if self._nav2 is not None and not self._logic.running:
                self._nav2.logic.end(now, GRACE_S)
                self._nav2.logic.tick(now)
            if self._logic.running or standing or self._velocity != ZERO:
                self._publish_twist()
            if standing:
                self._publish_status(self._logic.report(now))
            self._stop_now()

    def _stop_now(self) -> None:
        """Publish a stop that was decided just now, and log why; not at the next tick."""
        if self._velocity == ZERO != self._commanded:
            self._publish_twist()
        if self._unlogged:
            self.get_logger().warning(self._unlogged)
            self._unlogged = ""
        problem = self._logic.odometry_problem
        causes = self._logic.held_for, bool(problem)
        if causes == self._causes:
            return
        self._causes = causes
        if problem:
            sound = f"until odometry has been sound for {RECOVERY_S:g} s"
            self.get_logger().error(f"{problem}: the robot stands {sound}")
        elif causes[0]:
            self.get_logger().warning(f"standing: {causes[0]}")
        else:
            self.get_logger().info("nothing holds the robot any more")

    @property
    def _velocity(self) -> Velocity:
        """What is commanded now: the action's or, where there is none, what nav2 commands for others."""
        logic, now = self._logic, time.monotonic()
        if self._nav2 is not None and self.active and logic.is_free and not logic.problem(now):
            return self._nav2.logic.passing(now)
        return logic.velocity

    def _publish_twist(self) -> None:
        velocity = self._commanded = self._velocity
        twist = Twist()
        twist.linear.x, twist.linear.y, twist.angular.z = velocity.vx, velocity.vy, velocity.wz
        if self._stamped:
            stamped = TwistStamped(twist=twist)
            stamped.header.stamp, stamped.header.frame_id = self.get_clock().now().to_msg(), "base_link"
            self._twists.publish(stamped)
        else:
            self._twists.publish(twist)

    def _on_end(self, report: Report) -> None:
        self._publish_status(report)
        # Logged after the stop went out: a full machine may hold up the log.
        self._unlogged = report.message if "odometry" in report.message else ""

    def _publish_status(self, report: Report) -> None:
        status = ActionStatus(**asdict(report))
        status.header.stamp = self.get_clock().now().to_msg()
        self._statuses.publish(status)


def main() -> None:
    """Run the node, before other programs."""
    run_first()
    sys.exit(run_managed(ActionExecutor, THREADS))


if __name__ == "__main__":
    main()
