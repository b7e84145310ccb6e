"""A goal as any action client sends it: refused, replaced and cancelled goals are seen as the server ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from action_msgs.msg import GoalStatus
from spec_vlm_nav_interfaces.action import NavigateByInstruction


@dataclass(frozen=True)
class End:
    """How the action server closed a goal."""

    succeeded: bool
    cancelled: bool
    error_code: int
    message: str
    actions: int


class SentGoal:
    """A goal under way. Everything but `wait` runs in the thread that spins the client's node, where `call` puts it.

    Called from another thread, rclpy's action client may get the answer before it has noted the question.
    """

    def __init__(self, client: Any, call: Callable[[Callable[[], None]], Any], instruction: str, time_s: float) -> None:
        self._call = call
        self._done = threading.Event()
        self._handle: Any = None
        self._end: End | None = None
        goal = NavigateByInstruction.Goal(instruction=instruction)
        goal.time_allowance.sec = int(time_s)
        call(lambda: client.send_goal_async(goal).add_done_callback(self._on_answer))

    def wait(self, timeout: float) -> End | None:
        """Return the end of the goal, None if it has not come within `timeout` seconds."""
        self._done.wait(timeout)
        return self._end

    def cancel(self) -> None:
        """Ask the server to cancel; the end comes through `wait`."""
        if self._handle is not None:
            self._call(self._handle.cancel_goal_async)

    def _on_answer(self, future: Any) -> None:
        self._handle = future.result()
        if not self._handle.accepted:
            self._end = End(False, False, 0, "the action server took no goal", 0)
            self._done.set()
            return
        self._handle.get_result_async().add_done_callback(self._on_result)

    def _on_result(self, future: Any) -> None:
        answer = future.result()
        result = answer.result
        self._end = End(
            answer.status == GoalStatus.STATUS_SUCCEEDED, answer.status == GoalStatus.STATUS_CANCELED,
            result.error_code, result.error_msg, result.actions_executed,
        )  # fmt: skip
        self._done.set()
