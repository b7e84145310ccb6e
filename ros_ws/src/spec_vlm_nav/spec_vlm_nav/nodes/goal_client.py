"""Sends a goal to vlm_nav and follows it to its end, across restarts of the server; `client.Pursuit` decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.action import ActionClient
from rclpy.node import Node
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from unique_identifier_msgs.msg import UUID

from spec_vlm_nav.client import Do, GoalEnd, Order, Outcome, Progress, Pursuit, Request
from spec_vlm_nav.lifecycle import startup_of
from spec_vlm_nav.messages import SOURCE_WORDS, to_action
from spec_vlm_nav.navigation_goal import HOLD_UNCONFIRMED
from spec_vlm_nav.nodes.conversions import constants_of, seconds_of, to_duration
from spec_vlm_nav.nodes.diagnostics import LIFECYCLE, on_lines
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.process_graph import MANAGER

SERVER = "vlm_nav"
ACTION, FEEDBACK = "navigate_by_instruction", NavigateByInstruction.Impl.FeedbackMessage
STEP_S = 0.05
_RESULT = NavigateByInstruction.Result
CODES = constants_of(_RESULT)


class GoalClient:
    """Sends goals, one at a time. Everything here runs in the thread that spins the node, callbacks included."""

    def __init__(
        self,
        node: Node,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_end: Callable[[GoalEnd], None] = lambda _: None,
    ) -> None:
        self.pursuit: Pursuit | None = None
        """The goal under way, or the last one."""
        self.server = f"{node.get_namespace().rstrip('/')}/{SERVER}"
        """The full name of the node that takes goals."""
        self._on_progress, self._on_end = on_progress, on_end
        self._client = ActionClient(node, NavigateByInstruction, ACTION)
        self._handles: dict[tuple[Pursuit, int], Any] = {}
        self._ids: dict[bytes, tuple[Pursuit, int]] = {}
        """Which sending of which goal an id stands for."""
        # rclpy's own feedback ends with the first answer about a result, also with that of a restarted server which
        # does not know the goal yet.
        subscribe(node, FEEDBACK, f"{ACTION}/_action/feedback", self._on_feedback, 10)
        self._reported = True
        on_heartbeat(partial(subscribe, node), SERVER, self._heartbeat)
        self._doing = ""
        """What vlm_nav reported last of its own start."""
        takers = {f"{SERVER}: {LIFECYCLE}": self._on_server, f"{MANAGER}: {LIFECYCLE}": self._on_manager}
        on_lines(partial(subscribe, node), node, takers)
        self._timer = steady_timer(node, STEP_S, self._step)

    @property
    def has_server(self) -> bool:
        """Whether somebody takes goals."""
        return bool(self._client.server_is_ready())

    @property
    def running(self) -> bool:
        """Whether a goal is under way."""
        return not self._reported

    def send(self, request: Request) -> None:
        """Begin with a goal. Raises RuntimeError while another one is under way."""
        if self.running:
            raise RuntimeError("a goal is under way; cancel it first")
        self.pursuit, self._reported = Pursuit(request, time.monotonic()), False
        self._handles.clear()
        self._ids.clear()

    def cancel(self) -> None:
        """Have the goal cancelled, if one is under way; its end comes when the robot stands."""
        if self.pursuit is not None:
            self.pursuit.cancel(time.monotonic())

    def destroy(self) -> None:
        """Free the action client, before the node is destroyed."""
        self._client.destroy()

    def _heartbeat(self, now: float) -> None:
        if self.pursuit is not None:
            self.pursuit.heartbeat(now)

    def _on_server(self, line: DiagnosticStatus) -> None:
        self._doing = line.message

    def _on_manager(self, line: DiagnosticStatus) -> None:
        if self.pursuit is not None:
            states = {each.key: each.value for each in line.values}
            self.pursuit.starting(startup_of(SERVER, states, self._doing), time.monotonic())

    def _on_feedback(self, message: Any) -> None:
        pursuit, attempt = self._ids.get(bytes(message.goal_id.uuid), (None, 0))
        if pursuit is None or pursuit is not self.pursuit:
            return
        progress = progress_of(message.feedback)
        pursuit.feedback(attempt, progress, time.monotonic())
        if pursuit.progress is progress:
            self._on_progress(progress)

    def _step(self) -> None:
        pursuit = self.pursuit
        if pursuit is None:
            return
        pursuit.server(self.has_server)
        for order in pursuit.step(time.monotonic()):
            self._carry_out(pursuit, order)
        if pursuit.end is not None and not self._reported:
            self._reported = True
            self._on_end(pursuit.end)

    def _carry_out(self, pursuit: Pursuit, order: Order) -> None:
        attempt = order.attempt
        if order.do is Do.SEND:
            goal_id = uuid4().bytes
            self._ids[goal_id] = pursuit, attempt

            def on_answer(future: Any) -> None:
                handle = self._handles[pursuit, attempt] = future.result()
                pursuit.answered(attempt, handle.accepted, time.monotonic())
                if pursuit is not self.pursuit and handle.accepted:
                    handle.cancel_goal_async()

            sending = self._client.send_goal_async(goal_of(pursuit.request), goal_uuid=UUID(uuid=list(goal_id)))
            sending.add_done_callback(on_answer)
        elif order.do is Do.ASK:

            def on_result(future: Any) -> None:
                answer, now = future.result(), time.monotonic()
                if answer.status == GoalStatus.STATUS_UNKNOWN:
                    pursuit.unknown(attempt, now)
                else:
                    pursuit.result(attempt, end_of(answer), now)

            self._handles[pursuit, attempt].get_result_async().add_done_callback(on_result)
        else:
            self._handles[pursuit, attempt].cancel_goal_async()


def goal_of(request: Request) -> Any:
    """Return the goal message of a request."""
    goal = NavigateByInstruction.Goal(
        instruction=request.instruction,
        max_actions=request.max_actions,
        dry_run=request.dry_run,
    )
    goal.time_allowance = to_duration(request.time_s)
    return goal


def action_text(action: Any) -> str:
    """Return the text of a NavigationAction message: 'turn left large', 'stop', 'not here' or 'HOLD'."""
    try:
        known = to_action(action.kind, action.size)
    except ValueError as error:
        return str(error)
    return "HOLD" if known is None else known.text


def progress_of(feedback: Any) -> Progress:
    """Return a feedback message without ROS. Its decision is left empty until there was one."""
    action = feedback.action
    decided = action.goal != 0
    return Progress(
        state=feedback.state,
        reason=feedback.reason,
        link=feedback.link_state,
        understood=feedback.understood,
        answer=feedback.answer,
        guess=feedback.guess,
        step=action.step if decided else -1,
        action=action_text(action) if decided else "",
        source=SOURCE_WORDS.get(action.source, str(action.source)) if decided else "",
        reasoning=action.reasoning,
        complete=action.complete,
        done=tuple(feedback.done),
        distance_m=feedback.distance_travelled,
    )


def end_of(answer: Any) -> GoalEnd:
    """Return a result message without ROS."""
    result, elapsed = answer.result, answer.result.total_elapsed_time
    code = CODES.get(result.error_code, str(result.error_code))
    if answer.status == GoalStatus.STATUS_SUCCEEDED:
        outcome = Outcome.FOUND
    elif answer.status == GoalStatus.STATUS_CANCELED:
        outcome = Outcome.CANCELLED
    elif result.error_code == _RESULT.NOT_FOUND:
        outcome = Outcome.NOT_FOUND
    else:
        outcome = Outcome.REFUSED if code in ("INVALID_INPUT", "NOT_ACTIVE") else Outcome.FAILED
    return GoalEnd(
        outcome,
        code,
        result.error_msg,
        result.actions_executed,
        seconds_of(elapsed),
        result.distance_travelled,
        stopped=HOLD_UNCONFIRMED not in result.error_msg,
    )
