"""nav2's behaviours as ROS actions: sends the goals of `spec_vlm_nav.nav2`, and gives it what comes back."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
from rclpy.action import ActionClient
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.node import Node

from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.nav2 import Behaviour, Nav2, Nav2Goal, Result
from spec_vlm_nav.nodes.conversions import constants_of, to_duration

STATUSES = {GoalStatus.STATUS_SUCCEEDED: "succeeded", GoalStatus.STATUS_CANCELED: "canceled"}
"""All others are aborted."""
GONE = (CancelGoal.Response.ERROR_UNKNOWN_GOAL_ID, CancelGoal.Response.ERROR_GOAL_TERMINATED)


class Nav2Client:
    """Sends requests from the node's executor, in one callback group with their answers.

    rclpy's action client would lose an answer that comes while another thread still notes the request. `lock` guards
    `logic`, as the caller does. Raises ValueError where there is no nav2_msgs.
    """

    def __init__(self, node: Node, lock: Lock, timeout: float) -> None:
        kinds = _kinds()
        self.logic = Nav2(self, timeout)
        self._lock = lock
        self._group = MutuallyExclusiveCallbackGroup()
        self._clients = {
            behaviour: ActionClient(node, kind, behaviour.value, callback_group=self._group)
            for behaviour, kind in kinds.items()
        }
        self._kinds = kinds
        self._handles: dict[int, Any] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self._wake = node.create_guard_condition(self._work, callback_group=self._group)

    def missing(self) -> str:
        """Return which of nav2's action servers are not known, as in a list; empty where all are."""
        return ", ".join(behaviour.value for behaviour in Behaviour if not self.is_there(behaviour))

    def health(self) -> Status:
        """Return what `/diagnostics` reports."""
        missing = self.missing()
        words = (
            f"no action server {missing}: start nav2's behavior_server" if missing else "its action servers are there"
        )
        return Status("nav2", Level.ERROR if missing else Level.OK, words)

    def is_there(self, behaviour: Behaviour) -> bool:
        """Return whether the action server is known."""
        return bool(self._clients[behaviour].server_is_ready())

    def send(self, goal: Nav2Goal) -> None:
        """Send a goal."""
        self._order(partial(self._send, goal))

    def cancel(self, number: int) -> None:
        """Have the goal of this number cancelled, if it was accepted."""
        self._order(partial(self._cancel, number))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wake.trigger()

    def _work(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _send(self, goal: Nav2Goal) -> None:
        message = self._kinds[goal.behaviour].Goal(time_allowance=to_duration(goal.allowance_s))
        if goal.behaviour is Behaviour.DRIVE:
            message.target.x, message.speed = goal.amount, goal.speed
        else:
            message.target_yaw = goal.amount

        def on_feedback(_: Any) -> None:
            with self._lock:
                self.logic.on_feedback(goal.number, time.monotonic())

        future = self._clients[goal.behaviour].send_goal_async(message, on_feedback)
        future.add_done_callback(partial(self._on_answer, goal))

    def _on_answer(self, goal: Nav2Goal, future: Any) -> None:
        handle = future.result()
        if handle.accepted:
            self._handles[goal.number] = handle
            self._order(partial(self._ask, goal, handle))
        with self._lock:
            self.logic.on_answer(goal.number, handle.accepted, time.monotonic())

    def _ask(self, goal: Nav2Goal, handle: Any) -> None:
        handle.get_result_async().add_done_callback(partial(self._on_result, goal))

    def _on_result(self, goal: Nav2Goal, future: Any) -> None:
        answer = future.result()
        self._handles.pop(goal.number, None)
        result, status = answer.result, STATUSES.get(answer.status, "aborted")
        code = getattr(result, "error_code", None)
        name = constants_of(type(result)).get(code, "") if code is not None else ""
        with self._lock:
            self.logic.on_result(goal.number, Result(status, code, name, getattr(result, "error_msg", "")))

    def _cancel(self, number: int) -> None:
        handle = self._handles.get(number)
        if handle is not None:
            handle.cancel_goal_async().add_done_callback(partial(self._on_cancelled, number))

    def _on_cancelled(self, number: int, future: Any) -> None:
        if future.result().return_code in GONE:
            with self._lock:
                self.logic.on_gone(number)


def _kinds() -> dict[Behaviour, Any]:
    """Return nav2's action types. Raises ValueError where the sourced ROS does not have them."""
    try:
        from nav2_msgs.action import DriveOnHeading, Spin
    except ImportError:
        package = f"ros-{os.environ.get('ROS_DISTRO', 'DISTRO')}-nav2-msgs"
        raise ValueError(
            f"motion_service nav2 needs nav2_msgs, which the sourced ROS does not have: sudo apt install {package}"
        ) from None
    return {Behaviour.DRIVE: DriveOnHeading, Behaviour.SPIN: Spin}
