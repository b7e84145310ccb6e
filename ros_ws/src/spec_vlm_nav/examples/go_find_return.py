"""A behaviour tree: go to a pose with nav2, find an object by words there, and come back, whether it was found or not.

    pip install py_trees                     # or: sudo apt install ros-$ROS_DISTRO-py-trees
    python3 go_find_return.py 2.0 1.5 0.0 "the silver bottle"      # x and y in metres, yaw in radians, in nav2's frame

Start nav2 and `go2.launch.py motion_service:=nav2` first. The exit status is 0 if the object was found and the robot is
back, else 1. Ctrl-C ends the goal under way. `Act` makes any ROS action a leaf, so it fits in a tree of your own.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from action_msgs.msg import GoalStatus
from geometry_msgs.msg import PoseStamped
from nav2_msgs.action import NavigateToPose
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.composites import Sequence as InTurn
from py_trees.decorators import FailureIsSuccess
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from spec_vlm_nav_interfaces.action import NavigateByInstruction

SERVER_S = 20.0
"""How long an action server is waited for at the start."""


class Act(Behaviour):
    """Sends a goal, made when its turn comes, and runs until the action's result; a tree that leaves it cancels it."""

    def __init__(
        self,
        name: str,
        node: Node,
        kind: Any,
        server: str,
        goal: Callable[[], Any],
        on_feedback: Callable[[Any], None] = lambda _: None,
    ) -> None:
        super().__init__(name)
        self._node, self._goal, self._on_feedback = node, goal, on_feedback
        self._client = ActionClient(node, kind, server)
        self._sent: Any = None
        self._handle: Any = None
        self._result: Any = None

    def setup(self, **_: Any) -> None:
        """Wait for the action server. Raises RuntimeError where there is none."""
        if not self._client.wait_for_server(SERVER_S):
            raise RuntimeError(f"there is no action server for {self.name!r} within {SERVER_S:g} s")

    def initialise(self) -> None:
        """Send the goal."""
        self._handle = self._result = None
        self._sent = self._client.send_goal_async(self._goal(), lambda message: self._on_feedback(message.feedback))

    def update(self) -> Status:
        """Return how the goal stands; `feedback_message` is why it failed."""
        if self._handle is None:
            if not self._sent.done():
                return Status.RUNNING
            self._handle = self._sent.result()
            if not self._handle.accepted:
                self.feedback_message = "the goal was rejected"
                return Status.FAILURE
            self._result = self._handle.get_result_async()
        if not self._result.done():
            return Status.RUNNING
        answer = self._result.result()
        if answer.status == GoalStatus.STATUS_SUCCEEDED:
            return Status.SUCCESS
        # Humble's NavigateToPose gives no reason.
        code, words = getattr(answer.result, "error_code", ""), getattr(answer.result, "error_msg", "")
        self.feedback_message = f"error {code}: {words}"
        return Status.FAILURE

    def terminate(self, new_status: Status) -> None:
        """Cancel a goal that is left before its end."""
        if new_status is not Status.INVALID or self._sent is None:
            return
        if self._handle is None:
            self._sent.add_done_callback(lambda sent: sent.result().cancel_goal_async())
        elif self._result is not None and not self._result.done():
            self._handle.cancel_goal_async()


class Errand:
    """The tree, and where the robot began: nav2's first feedback says so."""

    def __init__(self, node: Node, there: PoseStamped, instruction: str) -> None:
        self._node, self._start = node, PoseStamped()
        self._find = Act(
            "find",
            node,
            NavigateByInstruction,
            "navigate_by_instruction",
            lambda: NavigateByInstruction.Goal(instruction=instruction),
        )
        go = self._to("go", lambda: there, self._note_start)
        back = self._to("return", lambda: self._start)
        self.root = InTurn("errand", memory=True, children=[go, FailureIsSuccess("or not", self._find), back])
        self._said: dict[str, Status] = {}

    def run(self, ended: Callable[[], bool]) -> bool:
        """Tick the tree until it is done or `ended`; return whether the object was found and the robot is back."""
        for leaf in self.root.iterate():
            leaf.setup()
        while not ended() and self.root.status not in (Status.SUCCESS, Status.FAILURE):
            self.root.tick_once()
            self._tell()
            rclpy.spin_once(self._node, timeout_sec=0.1)
        if self.root.status is Status.RUNNING:
            self.root.stop(Status.INVALID)
            for _ in range(10):
                rclpy.spin_once(self._node, timeout_sec=0.1)
        return self.root.status is Status.SUCCESS and self._find.status is Status.SUCCESS

    def _to(
        self, name: str, pose: Callable[[], PoseStamped], on_feedback: Callable[[Any], None] = lambda _: None
    ) -> Act:
        goal = lambda: NavigateToPose.Goal(pose=pose())  # noqa: E731
        return Act(name, self._node, NavigateToPose, "navigate_to_pose", goal, on_feedback)

    def _note_start(self, feedback: Any) -> None:
        if not self._start.header.frame_id:
            self._start = feedback.current_pose

    def _tell(self) -> None:
        for leaf in self.root.iterate():
            if isinstance(leaf, Act) and self._said.get(leaf.name, Status.INVALID) is not leaf.status:
                self._said[leaf.name] = leaf.status
                why = f": {leaf.feedback_message}" if leaf.status is Status.FAILURE else ""
                print(f"{leaf.name} {leaf.status.value.lower()}{why}", flush=True)


def pose_at(x: float, y: float, yaw: float, frame: str) -> PoseStamped:
    """Return a pose on the floor; stamped 0, which nav2 takes for now."""
    pose = PoseStamped()
    pose.header.frame_id, pose.pose.position.x, pose.pose.position.y = frame, x, y
    pose.pose.orientation.z, pose.pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    return pose


def main(words: Sequence[str]) -> int:
    """Run the errand of a command line and return the exit status."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("x", "y", "yaw"):
        line.add_argument(name, type=float)
    line.add_argument("what", help='such as "the red ball"')
    line.add_argument("--frame", default="map")
    given = line.parse_args(words)
    presses: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: presses.append(received))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        there = pose_at(given.x, given.y, given.yaw, given.frame)
        errand = Errand(Node("go_find_return"), there, given.what)
        return 0 if errand.run(lambda: bool(presses)) else 1
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main(remove_ros_args(sys.argv)[1:]))
