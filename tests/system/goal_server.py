"""A process in place of vlm_nav for tests of goal clients: plays feedback, ends or waits as the instruction asks.

It prints one JSON line for each goal that it takes, and `cancelled` when one was. Instructions: "... ball" is found
after three steps, "... wall" goes on until it is cancelled, "... void" is not found, "... door" is refused. Started
with the word "inactive" it refuses its first goal, as a node that is not active yet.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import rclpy
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import NavigationAction

from spec_vlm_nav.nodes.common import Heartbeat

RESULT = NavigateByInstruction.Result
ANSWER = "The ball is to the left. Action: turn left large"
TOKEN_S = 0.05


class Server(Node):
    def __init__(self) -> None:
        super().__init__("vlm_nav")
        self.active = "inactive" not in sys.argv
        group = ReentrantCallbackGroup()
        self.beat = Heartbeat(self, lambda: self.active)
        self.server = ActionServer(
            self,
            NavigateByInstruction,
            "navigate_by_instruction",
            execute_callback=self.execute,
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=group,
        )

    def execute(self, handle: Any) -> Any:
        request = handle.request
        seconds = request.time_allowance.sec + request.time_allowance.nanosec * 1e-9
        say({"instruction": request.instruction, "time": seconds, "actions": request.max_actions, "done": request.done})
        if not self.active:
            self.active = True
            handle.abort()
            return RESULT(error_code=RESULT.NOT_ACTIVE, error_msg="vlm_nav is not active")
        if request.instruction.endswith("door"):
            handle.abort()
            return RESULT(error_code=RESULT.INVALID_INPUT, error_msg="names no known object; known are ball, wall")
        feedback = NavigateByInstruction.Feedback(link_state="nominal", done=list(request.done))
        for step in range(10**6):
            if not self.think(handle, feedback, step):
                say("cancelled")
                handle.canceled()
                return RESULT(error_code=RESULT.CANCELLED, error_msg="cancelled", actions_executed=step)
            feedback.done = [*feedback.done, "turn left large"]
            if step == 2 and request.instruction.endswith("ball"):
                handle.succeed()
                return RESULT(actions_executed=3, distance_travelled=1.5)
            if step == 2 and request.instruction.endswith("void"):
                handle.abort()
                return RESULT(error_code=RESULT.TIMEOUT, error_msg="time is up", actions_executed=3)
        raise AssertionError

    def think(self, handle: Any, feedback: Any, step: int) -> bool:
        feedback.state, feedback.reason = "thinking", ""
        words = ANSWER.split(" ")
        for count in range(len(words) + 1):
            if handle.is_cancel_requested:
                return False
            feedback.answer, feedback.guess = " ".join(words[:count]), " ".join(["", *words[count : count + 3]])
            handle.publish_feedback(feedback)
            time.sleep(TOKEN_S)
        feedback.action = NavigationAction(goal=7, step=step, kind=NavigationAction.TURN_LEFT, size=3)
        feedback.state = "moving"
        handle.publish_feedback(feedback)
        return True


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    rclpy.init()
    node = Server()
    executor = MultiThreadedExecutor(4)
    executor.add_node(node)
    say("up")
    executor.spin()


if __name__ == "__main__":
    main()
