"""Takes up the goal of a vlm_nav that died, under its own id: so its client goes on with it, or is told why not."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.action import ActionClient
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.timer import Timer
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from unique_identifier_msgs.msg import UUID

from spec_vlm_nav.action_publisher import EXECUTOR_LIMIT_S
from spec_vlm_nav.goal_file import GoalFile, KeptGoal, path_of
from spec_vlm_nav.interlock import LATCHES
from spec_vlm_nav.navigator_interfaces import State
from spec_vlm_nav.nodes.conversions import to_duration
from spec_vlm_nav.nodes.diagnostics import on_lines
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.managed import ManagedNode
from spec_vlm_nav.nodes.process import steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe

ACTION = "navigate_by_instruction"
KEEP_S = 0.5
"""How often the running goal is written down."""
LOOK_S = 0.05
SETTLE_S = 2.0
"""A goal is taken up no sooner: its client may have cancelled it meanwhile, and says so again once a second."""
BEAT_S = 0.5
"""An older heartbeat of the bridge is none."""


class NotTakenUp(Exception):
    """Why a goal is not taken up again, in a sentence."""


class Resumption:
    """Keeps the node's running goal in a file, and leads the one that the file had at the start."""

    def __init__(self, node: ManagedNode, inputs: Inputs, within_s: float, folder: str) -> None:
        """`within_s`: no goal is taken up that died so long ago; 0: none is kept."""
        self.latches: int | None = None
        """How often a person has taken the robot from the bridge, as that reports it."""
        self._node, self._inputs, self._within_s = node, inputs, within_s
        self._lock = threading.Lock()
        self._file: GoalFile | None = None
        self._kept: KeptGoal | None = None
        """What the file had; None once a goal has begun."""
        self._running: Callable[[], KeptGoal] | None = None
        self._client: ActionClient | None = None
        self._beat_at = -math.inf
        self._sending: Timer | None = None
        if within_s:
            self._open(path_of(folder, node.get_fully_qualified_name()))

    def close(self) -> None:
        """Free what is not the node's own."""
        if self._client is not None:
            self._client.destroy()
        if self._file is not None:
            self._file.close()

    def begin(self, goal: Callable[[], KeptGoal]) -> None:
        """Keep, from now on, the goal that this function returns as it is then, and no other."""
        with self._lock:
            self._kept, self._running = None, goal
        self.keep()

    def end(self) -> None:
        """Keep no goal any more: the running one has ended, or somebody has ended it."""
        with self._lock:
            self._kept = self._running = None
            self._with_file(lambda file: file.forget())

    def keep(self) -> None:
        """Write down the running goal as it is now."""
        with self._lock:
            goal = self._running
            if goal is not None:
                self._with_file(lambda file: file.write(goal()))

    def taken_up(self, handle: Any, wait: Callable[[State, str], None]) -> KeptGoal | None:
        """Return the goal of the file if the handle is its, when the robot may go on with it; None for a new goal.

        `wait` is told what is waited for. Raises NotTakenUp.
        """
        kept = self._kept_as(handle)
        if kept is not None:
            self._wait(handle, kept, wait)
        return kept

    def keeps(self, kept: KeptGoal) -> bool:
        """Return whether no other goal has begun since this one was read."""
        return self._kept is kept

    def forgo(self, handle: Any) -> None:
        """Keep this goal no more, where it is the one of the file."""
        if self._kept_as(handle) is not None:
            self.end()

    def _kept_as(self, handle: Any) -> KeptGoal | None:
        kept = self._kept
        return kept if kept is not None and bytes(handle.goal_id.uuid).hex() == kept.id else None

    def _wait(self, handle: Any, kept: KeptGoal, wait: Callable[[State, str], None]) -> None:
        """Wait until the robot may go on. Raises NotTakenUp."""
        not_before = time.monotonic() + SETTLE_S
        while (missing := self._missing(kept)) or time.monotonic() < not_before:
            if handle.is_cancel_requested:
                raise NotTakenUp("cancelled")
            if self._kept is not kept:
                raise NotTakenUp("a newer goal took its place")
            if self._node.ending:
                raise NotTakenUp("the node ends")
            if kept.age() > self._within_s:
                late = f"vlm_nav died with it {kept.age():.0f} s ago, resume_within_s is {self._within_s:g}"
                raise NotTakenUp(f"{late}; {missing or 'it was about to go on'}")
            wait(State.HOLDING, f"the goal goes on after a restart: {missing or 'in a moment'}")
            time.sleep(LOOK_S)
        if self.latches != kept.latches and not kept.dry_run:
            raise NotTakenUp("an e-stop or the remote control has taken the robot since it began")

    def _missing(self, kept: KeptGoal) -> str:
        """Return what the robot waits for before it may go on, in a sentence; empty where it may."""
        node, now = self._node, time.monotonic()
        if not node.active:
            return f"vlm_nav is not active yet ({node.problem})"
        topic = node.resolve_topic_name(ACTION) + "/_action/feedback"
        others = (each for each in node.get_subscriptions_info_by_topic(topic) if each.node_name != node.get_name())
        if next(others, None) is None:
            return "no client waits for it"
        if kept.dry_run:
            return ""
        if now - self._beat_at > BEAT_S or self.latches is None:
            return "go2_bridge does not say that the robot stands and obeys"
        if self._inputs.place() is None:
            return "there is no odometry that can be moved on"
        return "action_executor is silent" if now - self._inputs.status_at > EXECUTOR_LIMIT_S else ""

    def _open(self, path: Any) -> None:
        node = self._node
        try:
            self._file = GoalFile(path)
            self._kept = self._file.read()
            if self._kept is not None and math.isinf(self._kept.age()):
                node.get_logger().warning(f"the goal in {path} is of before this machine's last start: it is left")
                self._kept = None
            if self._kept is None:
                self._file.forget()
        except (ValueError, OSError) as error:
            node.get_logger().warning(f"no goal is taken up again: {error}")
            if isinstance(error, ValueError):
                self._with_file(lambda file: file.forget())
        if self._file is None:
            return
        on_heartbeat(partial(subscribe, node), "go2_bridge", self._on_beat)
        on_lines(partial(subscribe, node), node, {"go2_bridge: robot": self._on_robot})
        group = ReentrantCallbackGroup()
        steady_timer(node, KEEP_S, self.keep, group)
        if self._kept is not None:
            self._client = ActionClient(node, NavigateByInstruction, ACTION, callback_group=group)
            self._sending = steady_timer(node, LOOK_S, partial(self._send, self._client, self._kept), group)

    def _send(self, client: ActionClient, kept: KeptGoal) -> None:
        """Send the kept goal to this very node, under its id, once."""
        if self._sending is not None and client.server_is_ready():
            self._sending.cancel()
            goal = NavigateByInstruction.Goal(
                instruction=kept.instruction, max_actions=kept.max_actions, dry_run=kept.dry_run
            )
            goal.time_allowance = to_duration(max(kept.left_s - kept.age(), 0.001))
            client.send_goal_async(goal, goal_uuid=UUID(uuid=list(bytes.fromhex(kept.id))))

    def _with_file(self, action: Callable[[GoalFile], None]) -> None:
        if self._file is not None:
            try:
                action(self._file)
            except OSError as error:
                words = f"the running goal cannot be kept, it ends with this node: {error}"
                self._node.get_logger().warning(words, throttle_duration_sec=60.0)

    def _on_beat(self, now: float) -> None:
        self._beat_at = now

    def _on_robot(self, line: DiagnosticStatus) -> None:
        with suppress(StopIteration, ValueError):
            self.latches = int(next(each.value for each in line.values if each.key == LATCHES))
