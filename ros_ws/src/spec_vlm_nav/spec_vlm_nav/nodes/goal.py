"""One accepted goal of vlm_nav: the navigator's body, what its client sees meanwhile, and the action's result."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Protocol

from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import NavigationAction

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.question import Reply
from spec_vlm_nav.action_publisher import POLL_S
from spec_vlm_nav.answer_stats import AnswerStats
from spec_vlm_nav.client import STOPPED
from spec_vlm_nav.goal_file import KeptGoal
from spec_vlm_nav.image_alarm import ImageAlarm
from spec_vlm_nav.link_monitor import LinkMode, LinkMonitor
from spec_vlm_nav.messages import OUTCOME_OF
from spec_vlm_nav.motion import Outcome, PlanarPose
from spec_vlm_nav.navigation_goal import HOLD_UNCONFIRMED, End, NavigationGoal
from spec_vlm_nav.navigator import Navigator, NavigatorConfig
from spec_vlm_nav.navigator_interfaces import Decision, Execution, Frame, State
from spec_vlm_nav.nodes.conversions import seconds_of, to_duration
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.outputs import Outputs, to_message, to_stats
from spec_vlm_nav.nodes.resumption import Resumption
from speculation.language.instructions import is_stop
from speculation.trace import Kind, Lane

RESEND_S, RESEND_HOLD_S = 0.5, 0.1
"""How soon a decision that the executor has not taken up is sent again."""
CANCEL_S = 1.0
_RESULT = NavigateByInstruction.Result
ERROR = {
    End.STOPPED: _RESULT.NONE,
    End.NOT_FOUND: _RESULT.NOT_FOUND,
    End.CANCELLED: _RESULT.CANCELLED,
    End.PREEMPTED: _RESULT.PREEMPTED,
    End.SHUTDOWN: _RESULT.SHUTDOWN,
    End.TIMEOUT: _RESULT.TIMEOUT,
    End.OUT_OF_ACTIONS: _RESULT.TIMEOUT,
    End.STALE_CAMERA: _RESULT.STALE_CAMERA,
    End.LINK_LOST: _RESULT.LINK_LOST,
    End.BAD_INSTRUCTION: _RESULT.INVALID_INPUT,
    End.NO_VALID_ACTION: _RESULT.NO_VALID_ACTION,
    End.CONTRADICTED: _RESULT.NO_VALID_ACTION,
    End.OBSTACLE: _RESULT.OBSTACLE,
    End.ROBOT_FAULT: _RESULT.ROBOT_FAULT,
}


FEEDBACK_S = 0.1
"""Feedback on an answer that grows is no more frequent."""
LINK = {
    LinkMode.NOMINAL: "the verifier is back and decides again",
    LinkMode.DEGRADED: "the link is lost: the draft model decides alone, small actions at half speed",
    LinkMode.HOLD: "the link is lost: the robot stands until the verifier is back",
}


class Host(Protocol):
    """Is the node that a goal runs in, with all that outlives the goal."""

    config: NavigatorConfig
    monitor: LinkMonitor
    answers: AnswerStats
    alarm: ImageAlarm
    inputs: Inputs
    out: Outputs
    resumption: Resumption

    @property
    def decoder(self) -> EdgeDecoder:
        """Return the edge's decoder."""

    def get_logger(self) -> Any:
        """Return the node's logger."""


class Feedback:
    """What a goal's client sees while it runs: state, the answer as it is committed, what was done, the link.

    It goes out when the state, its reason or the link's mode change, and as the answer grows.
    """

    def __init__(self, node: Host, handle: Any, asked: NavigationGoal, way_m: float = 0.0) -> None:
        """`way_m`: what the robot has walked for the goal before."""
        self._node, self.handle, self._asked = node, handle, asked
        self._message = NavigateByInstruction.Feedback()
        self._fed_at, self._unsent = -math.inf, False
        self._mode = node.monitor.mode
        self._from = node.inputs.travelled - way_m

    @property
    def state(self) -> str:
        """Thinking, moving or holding."""
        return str(self._message.state) or "beginning"

    def report(self, state: State, reason: str = "") -> None:
        """Note state and reason."""
        message = self._message
        self._note_link()
        if (message.state, message.reason) == (state.value, reason):
            return
        message.state, message.reason = state.value, reason
        if reason:
            self._node.get_logger().warning(f"{state.value}: {reason}")
        self._node.out.state(state.value, reason)
        self._send()

    def writing(self, answer: str, guess: str) -> None:
        """Note the running answer."""
        message = self._message
        self._note_link()
        if (message.answer, message.guess) != (answer, guess):
            # Noted in any case: what is too early for a message of its own goes out with the next.
            message.answer, message.guess, self._unsent = answer, guess, True
        if self._unsent and time.monotonic() - self._fed_at >= FEEDBACK_S:
            self._send()

    def _note_link(self) -> None:
        mode = self._node.monitor.mode
        if mode is not self._mode:
            self._mode = mode
            self._node.get_logger().warning(LINK[mode])
            self._send()

    def _send(self) -> None:
        message = self._message
        message.distance_travelled = self._node.inputs.travelled - self._from
        message.link_state = self._node.monitor.mode.value
        message.done = [action.text for action in self._asked.done]
        self._fed_at, self._unsent = time.monotonic(), False
        self.handle.publish_feedback(message)


class Goal(Feedback):
    """Runs in a thread of the executor's; `finish` ends it from any other."""

    def __init__(
        self, node: Host, handle: Any, number: int, asked: NavigationGoal, kept: KeptGoal | None = None
    ) -> None:
        """`kept`: the goal as it was before the node was started again."""
        super().__init__(node, handle, asked, kept.distance_m if kept is not None else 0.0)
        self._number = number
        self._ended_by: End | None = None
        self._wake = threading.Event()
        self._sent: NavigationAction | None = None
        self._sent_at = 0.0
        self._prompt = ""
        self._before_s = kept.elapsed_s if kept is not None else 0.0
        self._began = time.monotonic()
        self._place: PlanarPose | None = None
        """Where the robot was last, as far as odometry showed it."""
        self._latches = kept.latches if kept is not None else node.resumption.latches
        self._navigator = Navigator(
            asked, node.decoder, self, time.monotonic, self._sleep, self._over, node.config, node.monitor
        )

    def finish(self, end: End) -> None:
        """End the goal for this reason, unless it has one already; the robot stands at once. Returns at once."""
        self._ended_by = self._ended_by or end
        self._node.resumption.end()
        self._wake.set()

    def kept(self) -> KeptGoal:
        """Return the goal as it is now, for a node that goes on with it."""
        node, request = self._node, self.handle.request
        place = self._place = self.place() or self._place
        if self._latches is None:
            self._latches = node.resumption.latches
        motion = self._navigator.publisher.motion
        status = None if motion is None else node.inputs.statuses.get((self._number, motion.step))
        under_way = () if motion is None else (motion.action, 0.0 if status is None else status.progress)
        return KeptGoal(
            id=bytes(self.handle.goal_id.uuid).hex(),
            instruction=request.instruction,
            left_s=self._navigator.end_at - time.monotonic(),
            max_actions=request.max_actions,
            dry_run=request.dry_run,
            elapsed_s=self._before_s + time.monotonic() - self._began,
            distance_m=max(0.0, node.inputs.travelled - self._from),
            place=None if place is None else (place.x, place.y),
            latches=self._latches,
            record=self._asked.record(*under_way),
        )

    @property
    def summary(self) -> str:
        """The goal in a line."""
        return f"{self._asked.instruction!r}: {self.state}, {len(self._asked.done)} actions done"

    def run(self) -> Any:
        """Navigate, close the goal, and return its result."""
        request, node, instruction = self.handle.request, self._node, self._asked.instruction
        node.get_logger().info(f"goal: {instruction!r}")
        if is_stop(instruction):
            return self._stop()
        node.out.instruction(instruction)
        node.resumption.begin(self.kept)
        try:
            outcome = self._navigator.run(seconds_of(request.time_allowance), request.max_actions)
        except Exception as error:
            words = repr(error) if self.stand() else repr(error) + HOLD_UNCONFIRMED
            node.get_logger().error(f"goal failed: {words}")
            self.handle.abort()
            return _RESULT(error_code=_RESULT.UNKNOWN, error_msg=words)
        finally:
            node.resumption.end()
        if outcome.end is End.CANCELLED:
            # The callback that ended it returns before rclpy notes the request.
            until = time.monotonic() + CANCEL_S
            while not self.handle.is_cancel_requested and time.monotonic() < until:
                time.sleep(POLL_S)
        if outcome.end is End.STOPPED:
            self.handle.succeed()
        elif outcome.end is End.CANCELLED and self.handle.is_cancel_requested:
            self.handle.canceled()
        else:
            self.handle.abort()
        node.get_logger().info(f"goal ended: {outcome.message}")
        return _RESULT(
            error_code=ERROR[outcome.end],
            error_msg=outcome.message,
            total_elapsed_time=to_duration(self._before_s + outcome.elapsed_s),
            actions_executed=outcome.actions,
            distance_travelled=node.inputs.travelled - self._from,
        )

    def _stop(self) -> Any:
        """Have the robot stand, as the instruction says; the goal before was ended by this one."""
        self._node.resumption.end()
        if self._asked.is_dry or self.stand():
            self.handle.succeed()
            return _RESULT(error_msg=STOPPED)
        self.handle.abort()
        return _RESULT(error_code=_RESULT.ROBOT_FAULT, error_msg="told to stop" + HOLD_UNCONFIRMED)

    def stand(self) -> bool:
        """Publish a HOLD and return whether the executor took it, see `Navigator.stand`."""
        return self._navigator.stand("the goal was broken off")

    def frame_after(self, moment: float) -> Frame | None:
        return self._node.inputs.frame_after(moment, self._node.config.stale_s)

    def camera_problem(self) -> str:
        return self._node.inputs.problem()

    def place(self) -> PlanarPose | None:
        return self._node.inputs.place()

    def understood(self, instruction: str) -> None:
        if instruction:
            self._node.get_logger().info(f"understood: {instruction}")
        self._message.understood = instruction

    def asked(self, prompt: str, frame: Frame) -> None:
        self._prompt = prompt
        self._node.out.prompt(prompt, frame)

    def act(self, decision: Decision) -> None:
        node, reply = self._node, decision.reply
        message = to_message(self._number, decision)
        self._sent, self._sent_at = message, time.monotonic()
        if not self._asked.is_dry:
            node.out.actions.publish(message)
        if decision.complete:
            node.out.decisions.publish(message)
        node.resumption.keep()
        self._message.action = message
        if reply is not None:
            stats = to_stats(self._number, decision, reply)
            self._message.tokens_drafted += stats.drafted
            self._message.tokens_accepted += stats.accepted
            self._message.link_rtt = stats.link_rtt_s
            node.answers.note(reply.stats)
            if decision.frame is not None:
                self._publish_place(decision, reply, decision.frame)
                node.alarm.answered(self._prompt, reply.text, reply.stats, decision.frame.jpeg)
            node.out.stats.publish(stats)
            text = "none" if decision.action is None else decision.action.text
            step = decision.step
            node.decoder.trace.mark(Kind.DECISION.value, Lane.EDGE, goal=self._number, decision=step, action=text)

    def _publish_place(self, decision: Decision, reply: Reply, frame: Frame) -> None:
        """Publish where a verified answer places the object, if that is asked for."""
        if decision.action is None or decision.alone:
            return
        seen = self._asked.sighting(reply.text, frame)
        if seen is not None:
            self._node.out.sighting(seen, frame, self._node.inputs.fixed_frame)

    def execution(self, step: int) -> Execution | None:
        """Return how a decision stands; one that is not taken up is sent again: the executor knows repetitions."""
        status, sent = self._node.inputs.statuses.get((self._number, step)), self._sent
        newest = sent is not None and sent.step == step
        fits = status is not None and sent is not None and (status.kind, status.size) == (sent.kind, sent.size)
        outcome = Outcome.RUNNING if status is None else OUTCOME_OF.get(status.outcome)
        waits = newest and not fits and outcome in (Outcome.RUNNING, Outcome.DONE)
        if waits:
            self._send_again()
        if status is None:
            return None
        remaining = status.remaining
        if waits:
            outcome, remaining = Outcome.RUNNING, math.inf
        return Execution(outcome, status.progress, remaining, status.elapsed, status.message)

    def executor_silence(self) -> float:
        return time.monotonic() - self._node.inputs.status_at

    def _send_again(self) -> None:
        sent = self._sent
        if sent is None or self._asked.is_dry:
            return
        waited = RESEND_HOLD_S if sent.kind == NavigationAction.HOLD else RESEND_S
        if time.monotonic() - self._sent_at > waited:
            self._sent_at = time.monotonic()
            self._node.out.actions.publish(sent)

    def _over(self) -> End | None:
        return self._ended_by or (End.CANCELLED if self.handle.is_cancel_requested else None)

    def _sleep(self, seconds: float) -> None:
        """Sleep, but not past the moment in which the goal is ended."""
        if self._wake.is_set():
            time.sleep(seconds)
        else:
            self._wake.wait(seconds)
