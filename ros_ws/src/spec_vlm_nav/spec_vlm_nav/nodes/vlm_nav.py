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

from edge_drafter import Mode
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
    NavigatorConfig,
    State,
)
from spec_vlm_nav.nodes.common import Heartbeat, choice, parameter, run, sample_of
from spec_vlm_nav.odometry import OdometryCheck
from speculation.prompts import Guidance, ResponseOrder, instruction_problem, parse_answer
from speculation.prompts import NavigationAction as Action
from speculation.trace import Kind, Lane

RESEND_S, RESEND_HOLD_S = 0.5, 0.1
"""How soon a decision that the executor has not taken up is sent again."""
BUSY_S = 1.0
"""An executor that ran nothing for so long hangs. While the draft model computes, its callbacks wait for the
interpreter, half a second on busy cores; and the robot can do without this node's word for a second, since every action
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
        order = choice(self, "response_order", ResponseOrder.REASON_FIRST, "what answers begin with")
        self.decoder = EdgeDecoder(
            EdgeConfig.flat(
                draft_model=Path(parameter(self, "draft_model", "models/draft", "folder of the draft model")),
                verifier=parameter(self, "verifier", "tcp://127.0.0.1:5555", "address of the verifier"),
                mode=parameter(self, "mode", "full", ", ".join(mode.value for mode in Mode)),
                profile=parameter(self, "profile", "raw", "device profile whose times are waited for"),
                link=parameter(self, "link", "", "link of config/links.json to emulate; empty: none"),
                target=parameter(self, "target_fingerprint", "", "only target that is acceptable; empty: any"),
                keys=parameter(self, "keys", "", "folder of CURVE keys; empty: plain TCP, to this machine only"),
                allow_plain=parameter(self, "allow_plain", False, "without keys, trust a verifier elsewhere too"),
                gamma=parameter(self, "gamma", 4, "draft tokens per verification", 0, 64),
                drafting=parameter(self, "drafting", "", "changes of the mode's settings, e.g. interrupt=off"),
                predictor=parameter(
                    self, "predictor", "auto", "folder of an acceptance predictor; auto: the draft's; off"
                ),
                sampling=parameter(
                    self, "sampling", "greedy", "greedy, coupled(temperature=0.7) or another rule of docs/decoding.md"
                ),
                seed=parameter(self, "seed", 0, "of sampled answers' draws", 0, 2**62),
                threads=parameter(self, "threads", 1, "CPU threads of the draft model", 1, 64),
                device=parameter(self, "device", "cpu", "where the draft model runs, e.g. cuda"),
                dtype=parameter(self, "dtype", "float32", "what it computes in"),
                attention=parameter(self, "attention", "sdpa", "sdpa or eager"),
                quantisation=parameter(self, "quantisation", "none", "none, nf4, int8 or int8_weight_only"),
                min_pixels=parameter(self, "min_pixels", 0, "least pixels of a resized frame; 0: its own", 0, 1 << 24),
                max_pixels=parameter(self, "max_pixels", 0, "most pixels of a resized frame; 0: its own", 0, 1 << 24),
                capacity=parameter(self, "capacity", 2048, "its cache: image, prompt, answer, tree", 256, 1 << 20),
                max_tokens=parameter(self, "max_tokens", 128, "longest answer", 8, 512),
                silence_s=parameter(self, "link_silence_s", 1.5, "silence that is a lost verifier, s", 0.2, 60.0),
                resume_s=parameter(self, "link_resume_s", 1.0, "a step waits so long for it, s", 0.0, 60.0),
            )
        )
        self.config = NavigatorConfig(
            order=order,
            guide=choice(self, "guide", Guidance.AUTO, "whether prompts explain the robot to the model"),
            time_allowance_s=parameter(self, "time_allowance_s", 300.0, "default time of a goal, s", 1.0, 3600.0),
            step_limit_s=parameter(self, "step_limit_s", 30.0, "longest time for one answer, s", 0.5, 600.0),
            action_limit_s=parameter(self, "action_limit_s", 15.0, "longest time for one action, s", 1.0, 60.0),
            stale_s=parameter(self, "stale_frame_s", 1.0, "older camera frames are not looked at, s", 0.1, 5.0),
        )
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
        # A camera whose clock is not this machine's tells nothing about age; arrival has to do.
        known = age if 0.0 <= age <= 60.0 else 0.0
        self.frame = Frame(bytes(image.data), time.monotonic(), known, image.header)

    def _on_odometry(self, odometry: Odometry) -> None:
        # What is wrong with odometry, action_executor says; here a wrong step is only not counted.
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
        wish, node = self._handle.request, self._node
        problem = self._instruction_problem()
        if problem:
            node.get_logger().error(f"goal refused: {problem}")
            self._handle.abort()
            return _RESULT(error_code=_RESULT.INVALID_INPUT, error_msg=problem)
        if node.decoder.problem:
            node.get_logger().error(f"goal refused: {node.decoder.problem}")
            self._handle.abort()
            return _RESULT(error_code=_RESULT.LINK_LOST, error_msg=node.decoder.problem)
        node.get_logger().info(f"goal: {wish.instruction!r}")
        node.instructions.publish(String(data=wish.instruction))
        allowance = wish.time_allowance.sec + wish.time_allowance.nanosec * 1e-9
        try:
            outcome = self._navigator.run(wish.instruction, allowance, wish.max_actions, wish.dry_run)
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
        """See `navigator.Body`. The prompt names its frame, so that a bag can be asked the same again."""
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
