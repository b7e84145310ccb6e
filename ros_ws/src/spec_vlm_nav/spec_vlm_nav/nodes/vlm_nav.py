"""Action server NavigateByInstruction: wires camera, executor and decoder to the navigator. Latest frame only."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

from builtin_interfaces.msg import Duration
from nav_msgs.msg import Odometry
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus, DecodingStats, NavigationAction
from std_msgs.msg import String

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.reply import Reply, VerifierLost
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.messages import OUTCOME_OF, AskedPrompt, figures, to_numbers
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.navigator import (
    HOLD_UNCONFIRMED,
    End,
    Ending,
    Frame,
    Navigator,
    State,
)
from spec_vlm_nav.nodes.common import Heartbeat, parameter, run, sample_of, settings
from spec_vlm_nav.odometry import OdometryCheck
from spec_vlm_nav.parameters import NAVIGATOR, Parameters
from speculation.prompts import NavigationAction as Action
from speculation.prompts import instruction_problem, parse_answer
from speculation.trace import Kind, Lane

EDGE = Parameters(
    EdgeConfig,
    {"target": "target_fingerprint", "silence_s": "link_silence_s", "resume_s": "link_resume_s"},
    without=("text_only",),
    defaults={"draft_model": Path("models/draft")},
)
RESEND_S, RESEND_HOLD_S = 0.5, 0.1
"""How soon a decision that the executor has not taken up is sent again."""
BUSY_S = 1.0
"""An executor that ran nothing for so long hangs. While the draft model computes, its callbacks wait for the
interpreter, half a second on busy cores; and the robot can do without this node for a second, since every action
is bounded, runs in action_executor's own loop and ends by itself."""
RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)
NEWER_GOAL = "a newer goal took over"
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_RESULT = NavigateByInstruction.Result
ERROR = {
    End.STOPPED: _RESULT.NONE,
    End.CANCELLED: _RESULT.NONE,
    End.TIMEOUT: _RESULT.TIMEOUT,
    End.OUT_OF_ACTIONS: _RESULT.TIMEOUT,
    End.STALE_CAMERA: _RESULT.STALE_CAMERA,
    End.LINK_LOST: _RESULT.LINK_LOST,
    End.BAD_INSTRUCTION: _RESULT.INVALID_INPUT,
    End.NO_VALID_ACTION: _RESULT.NO_VALID_ACTION,
    End.OBSTACLE: _RESULT.OBSTACLE,
    End.ROBOT_FAULT: _RESULT.ROBOT_FAULT,
}


class VlmNav(Node):
    """Holds what outlives a goal: decoder, newest frame, newest odometry, newest executor status."""

    def __init__(self) -> None:
        super().__init__("vlm_nav")
        self.config = settings(self, NAVIGATOR)
        self.decoder = EdgeDecoder(settings(self, EDGE))
        self._trace_file = parameter(self, "trace", "", "file for the trace, written at the end of goals; empty: none")
        self.frame: Frame | None = None
        self.status: ActionStatus | None = None
        self.status_at = -math.inf
        self.travelled = 0.0
        self._odometry = OdometryCheck()
        self._place: PlanarPose | None = None
        self._goal_lock, self._running = threading.Lock(), threading.Lock()
        self._current: Goal | None = None
        self._goals = int(time.time() * 1000)
        self.actions = self.create_publisher(NavigationAction, "navigation_action", RELIABLE)
        self.decisions = self.create_publisher(NavigationAction, "~/decision", RELIABLE)
        self.prompts = self.create_publisher(String, "~/prompt", RELIABLE)
        self.stats = self.create_publisher(DecodingStats, "decoding_stats", RELIABLE)
        self.states = self.create_publisher(String, "navigation_state", RELIABLE)
        # A goal's instruction is on no topic of its own; without this a bag would hold answers to an unknown question.
        self.instructions = self.create_publisher(String, "instruction", LATCHED)
        sensing = MutuallyExclusiveCallbackGroup()
        self.create_subscription(
            CompressedImage, "camera/image/compressed", self._on_image, qos_profile_sensor_data, callback_group=sensing
        )
        self.create_subscription(Odometry, "odom", self._on_odometry, qos_profile_sensor_data, callback_group=sensing)
        self.create_subscription(ActionStatus, "action_status", self._on_status, RELIABLE, callback_group=sensing)
        self._heartbeat = Heartbeat(self, busy_s=BUSY_S)
        self._server = ActionServer(
            self,
            NavigateByInstruction,
            "navigate_by_instruction",
            execute_callback=self._execute,
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )
        self.get_logger().info(
            f"ready: mode {self.decoder.config.decoding.mode}, verifier {self.decoder.config.connection.verifier}"
        )

    def close(self) -> None:
        """End the running goal and the link."""
        with self._goal_lock:
            if self._current is not None:
                self._current.superseded = True
            goal = self._current
        # The executor's threads may still be in the goal; it leaves at its next look at the clock, and holds the robot.
        if self._running.acquire(timeout=2.0):
            self._running.release()
        elif goal is not None and not goal.stand():
            self.get_logger().error(f"the node ends in the middle of a goal{HOLD_UNCONFIRMED}")
        self.decoder.close()
        self._write_trace()
        self._heartbeat.close()

    def _execute(self, handle: Any) -> Any:
        """Run one goal in a thread of the executor's; a newer goal ends this one."""
        goal = Goal(self, handle, self._next_goal())
        with self._goal_lock:
            if self._current is not None:
                self._current.superseded = True
            self._current = goal
        with self._running:
            try:
                return goal.run()
            finally:
                self._write_trace()
                with self._goal_lock:
                    if self._current is goal:
                        self._current = None

    def _write_trace(self) -> None:
        if self._trace_file and self.decoder.trace.spans:
            try:
                self.decoder.trace.write(Path(self._trace_file))
            except OSError as error:
                self.get_logger().error(f"the trace {self._trace_file} cannot be written: {error.strerror}")

    def _next_goal(self) -> int:
        self._goals = max(self._goals + 1, int(time.time() * 1000))
        return self._goals

    def _on_image(self, image: CompressedImage) -> None:
        age = (self.get_clock().now() - Time.from_msg(image.header.stamp)).nanoseconds * 1e-9
        # Stamps of a camera with another clock hold no age; the time of arrival has to do.
        known = age if 0.0 <= age <= 60.0 else 0.0
        self.frame = Frame(bytes(image.data), time.monotonic(), known, image.header)

    def _on_odometry(self, odometry: Odometry) -> None:
        # action_executor reports what is wrong with odometry; here a wrong step is only not counted.
        before, self._place = self._place, self._odometry.take(sample_of(odometry))
        if before is not None and self._place is not None:
            self.travelled += math.hypot(self._place.x - before.x, self._place.y - before.y)

    def _on_status(self, status: ActionStatus) -> None:
        self.status, self.status_at = status, time.monotonic()


class Goal:
    """One accepted goal: the navigator's body, and the action's feedback and result."""

    def __init__(self, node: VlmNav, handle: Any, number: int) -> None:
        self._node, self._handle, self._number = node, handle, number
        self.superseded = False
        self._feedback = NavigateByInstruction.Feedback()
        self._sent: NavigationAction | None = None
        self._sent_at = 0.0
        self._from = node.travelled
        self._navigator = Navigator(node.decoder, self, time.monotonic, time.sleep, self._is_over, node.config)

    def run(self) -> Any:
        """Check the instruction, navigate, and close the goal."""
        request, node = self._handle.request, self._node
        problem = self._instruction_problem()
        if problem:
            node.get_logger().error(f"goal refused: {problem}")
            self._handle.abort()
            return _RESULT(error_code=_RESULT.INVALID_INPUT, error_msg=problem)
        if node.decoder.problem:
            node.get_logger().error(f"goal refused: {node.decoder.problem}")
            self._handle.abort()
            return _RESULT(error_code=_RESULT.LINK_LOST, error_msg=node.decoder.problem)
        node.get_logger().info(f"goal: {request.instruction!r}")
        node.instructions.publish(String(data=request.instruction))
        allowance = request.time_allowance.sec + request.time_allowance.nanosec * 1e-9
        try:
            outcome = self._navigator.run(request.instruction, allowance, request.max_actions, request.dry_run)
        except Exception as error:
            words = repr(error) if self.stand() else repr(error) + HOLD_UNCONFIRMED
            node.get_logger().error(f"goal failed: {words}")
            self._handle.abort()
            return _RESULT(error_code=_RESULT.UNKNOWN, error_msg=words)
        if outcome.end is End.STOPPED:
            self._handle.succeed()
        elif outcome.end is End.CANCELLED and self._handle.is_cancel_requested:
            self._handle.canceled()
        else:
            self._handle.abort()
        node.get_logger().info(f"goal ended: {outcome.message}")
        return _RESULT(
            error_code=ERROR[outcome.end],
            error_msg=NEWER_GOAL + ("" if outcome.held else HOLD_UNCONFIRMED) if self.superseded else outcome.message,
            total_elapsed_time=to_duration(outcome.elapsed_s),
            actions_executed=outcome.actions,
            distance_travelled=node.travelled - self._from,
        )

    def stand(self) -> bool:
        """Publish a HOLD and return whether the executor took it, see `Navigator.stand`."""
        return self._navigator.stand("the goal was broken off", self._handle.request.dry_run)

    def _instruction_problem(self) -> str:
        """Return why the instruction cannot be followed, as far as that is known now; empty if it can."""
        node, objects = self._node, None
        # Where the verifier is not up yet, the navigator holds, and looks again when it is.
        with contextlib.suppress(VerifierLost):
            objects = node.decoder.objects(node.config.step_limit_s)
        return instruction_problem(self._handle.request.instruction, objects)

    def frame_after(self, moment: float) -> Frame | None:
        """See `navigator.Body`."""
        frame = self._node.frame
        if frame is None:
            return None
        taken = frame.arrived - frame.age
        return frame if taken > moment and time.monotonic() - taken <= self._node.config.stale_s else None

    def asked(self, prompt: str, frame: Frame) -> None:
        """See `navigator.Body`. The message names its frame, so that a bag can be replayed with the same prompts."""
        stamp_ns = Time.from_msg(frame.stamp.stamp).nanoseconds
        self._node.prompts.publish(String(data=AskedPrompt(stamp_ns, prompt).to_json()))

    def act(self, step: int, action: Action | None, reply: Reply | None, frame: Frame | None) -> None:
        """See `navigator.Body`."""
        node = self._node
        kind, size, value = to_numbers(action)
        message = NavigationAction(goal=self._number, step=step, kind=kind, size=size, value=value)
        if frame is not None:
            message.header = frame.stamp
        if reply is None:
            message.source = NavigationAction.FALLBACK
        else:
            alone = reply.stats.mode == "edge"
            message.source = NavigationAction.EDGE_ONLY if alone else NavigationAction.CLOUD_VERIFIED
            message.reasoning = parse_answer(reply.text).reasoning
            self._publish_stats(step, reply, frame)
            text = "none" if action is None else action.text
            node.decoder.trace.mark(Kind.DECISION.value, Lane.EDGE, goal=self._number, decision=step, action=text)
        self._feedback.action = message
        self._sent, self._sent_at = message, time.monotonic()
        node.decisions.publish(message)
        if not self._handle.request.dry_run:
            node.actions.publish(message)

    def ending(self, step: int) -> Ending | None:
        """See `navigator.Body`. An action that the executor has not taken up is sent again; it knows repetitions."""
        status = self._node.status
        if status is not None and (status.goal, status.step) == (self._number, step):
            if status.outcome == ActionStatus.RUNNING:
                if status.message:
                    self.report(State.HOLDING, status.message)
                return None
            return Ending(OUTCOME_OF.get(status.outcome), status.message)
        waited = RESEND_HOLD_S if self._sent is not None and self._sent.kind == NavigationAction.HOLD else RESEND_S
        if self._sent is not None and time.monotonic() - self._sent_at > waited:
            self._sent_at = time.monotonic()
            self._node.actions.publish(self._sent)
        return None

    def executor_silence(self) -> float:
        """See `navigator.Body`."""
        return time.monotonic() - self._node.status_at

    def report(self, state: State, reason: str = "") -> None:
        """See `navigator.Body`. Feedback goes out when state or reason change."""
        feedback = self._feedback
        if (feedback.state, feedback.reason) == (state.value, reason):
            return
        feedback.state, feedback.reason = state.value, reason
        feedback.distance_travelled = self._node.travelled - self._from
        if reason:
            self._node.get_logger().warning(f"{state.value}: {reason}")
        self._node.states.publish(String(data=f"{state.value}: {reason}" if reason else state.value))
        self._handle.publish_feedback(feedback)

    def _is_over(self) -> bool:
        return self.superseded or self._handle.is_cancel_requested

    def _publish_stats(self, step: int, reply: Reply, frame: Frame | None) -> None:
        message = DecodingStats(goal=self._number, step=step, answer=reply.text, **figures(reply.stats))
        message.profile = "" if reply.profile == "raw" else reply.profile
        message.link, message.link_rtt_s = reply.link, float(reply.link_rtt_s)
        if frame is not None:
            message.header, message.frame_age_s = frame.stamp, float(frame.age)
        self._feedback.tokens_drafted += reply.stats.drafted
        self._feedback.tokens_accepted += reply.stats.accepted
        self._feedback.link_rtt = message.link_rtt_s
        self._node.stats.publish(message)


def to_duration(seconds: float) -> Duration:
    """Return a duration message."""
    return Duration(sec=int(seconds), nanosec=int(seconds % 1.0 * 1e9))


def main() -> None:
    """Run the node."""
    sys.exit(run(VlmNav, VlmNav.close, threads=4))


if __name__ == "__main__":
    main()
