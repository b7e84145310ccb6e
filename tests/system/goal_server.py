"""A process in place of vlm_nav for tests of goal clients: plays feedback, ends or waits as the instruction asks.

It prints one JSON line for each goal that it takes, and `cancelled` when one was. Instructions: "... ball" is found
after three steps, "... wall" goes on until it is cancelled, "... void" is not found, "... ghost" not here, "... door"
is refused. Started with the word "inactive" it refuses its first goal, as a node that is not active yet; with "endless"
every goal goes on. It also stands in for the camera and for go2_bridge's emergency stop, of which it prints what
arrives.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import cv2
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import NavigationAction
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from spec_vlm_nav.answer_stats import GAIN
from spec_vlm_nav.bridge import battery_status
from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.nodes.diagnostics import report_of
from spec_vlm_nav.nodes.heartbeat import Heartbeat

RESULT = NavigateByInstruction.Result
ANSWER = "The ball is to the left. Action: turn left large"
TOKEN_S = 0.05
ENDS = {
    "ball": (RESULT.NONE, ""),
    "void": (RESULT.TIMEOUT, "time is up"),
    "ghost": (RESULT.NOT_FOUND, "I looked everywhere"),
}


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
        self.frames = self.create_publisher(CompressedImage, "camera/image/compressed", qos_profile_sensor_data)
        self.decisions = self.create_publisher(NavigationAction, "vlm_nav/decision", 10)
        self.create_timer(0.2, self.look)
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.create_timer(0.5, self.report)
        self.create_subscription(Bool, "e_stop", lambda message: put(f"e_stop {message.data}"), 10)
        self.create_service(Trigger, "go2_bridge/reset", self.reset)

    def look(self) -> None:
        row = np.linspace(0, 255, 320, dtype=np.uint8)
        scene = np.dstack([np.tile(row, (180, 1)), np.full((180, 320), 90, np.uint8), np.tile(row[::-1], (180, 1))])
        self.frames.publish(CompressedImage(format="jpeg", data=cv2.imencode(".jpg", scene)[1].tobytes()))

    def report(self) -> None:
        lines = [Status("decoding", Level.OK, "last answer in 0.11 s", {"mode": "full", GAIN: 1.834})]
        report = report_of(self, [*lines, Status("link", Level.OK, "", {"mode": "nominal", "rtt s": 0.0412})])
        (battery,) = report_of(self, [battery_status(17.0)]).status
        battery.name = "go2_bridge: battery"
        report.status = [*report.status, battery]
        self.diagnostics.publish(report)

    def reset(self, _: Any, answer: Any) -> Any:
        put("reset")
        answer.success, answer.message = True, "stands up again"
        return answer

    def execute(self, handle: Any) -> Any:
        request = handle.request
        seconds = request.time_allowance.sec + request.time_allowance.nanosec * 1e-9
        put({"instruction": request.instruction, "time": seconds, "actions": request.max_actions, "done": request.done})
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
                put("cancelled")
                handle.canceled()
                return RESULT(error_code=RESULT.CANCELLED, error_msg="cancelled", actions_executed=step)
            feedback.done = [*feedback.done, "turn left large"]
            if step != 2 or "endless" in sys.argv:
                continue
            code, words = ENDS.get(request.instruction.split()[-1], (None, ""))
            if code is not None:
                (handle.abort if code else handle.succeed)()
                return RESULT(error_code=code, error_msg=words, actions_executed=3, distance_travelled=1.5)
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
        self.decisions.publish(feedback.action)
        feedback.state = "moving"
        handle.publish_feedback(feedback)
        return True


def put(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    rclpy.init()
    node = Server()
    executor = MultiThreadedExecutor(4)
    executor.add_node(node)
    put("up")
    executor.spin()


if __name__ == "__main__":
    main()
