"""The web page of a running robot: camera, the answer as it is written, states, Start and Stop."""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from typing import Any

from action_msgs.msg import GoalStatus, GoalStatusArray
from action_msgs.srv import CancelGoal
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.msg import NavigationAction
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from spec_vlm_nav.client import STOP_S, GoalEnd, Request, instruction_of
from spec_vlm_nav.messages import SOURCE_WORDS
from spec_vlm_nav.nodes.diagnostics import status_of
from spec_vlm_nav.nodes.goal_client import ACTION, FEEDBACK, SERVER, GoalClient, action_text, progress_of
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.nodes.topics import LATCHED
from spec_vlm_nav.parameters import Parameters
from spec_vlm_nav.transcript import closing_words
from spec_vlm_nav.web.server import Command, PageServer, WebConfig
from spec_vlm_nav.web.view import View

WEB = Parameters(WebConfig)
BRIDGE = "go2_bridge"
RUNNING = {GoalStatus.STATUS_ACCEPTED, GoalStatus.STATUS_EXECUTING, GoalStatus.STATUS_CANCELING}
POLL_S, PRESS_S, RESET_S = 0.05, 0.1, 0.3


class Web(Node):
    """Messages into the view, commands of the page into goals. The page shows goals of other clients too."""

    def __init__(self) -> None:
        super().__init__("web")
        self.view = View((SERVER, BRIDGE))
        self._commands: list[Command] = []
        self._sent_at = 0.0
        self._pressed, self._reset_at = False, math.inf
        self._client = GoalClient(self, on_end=self._on_end)
        self._cancel_all = self.create_client(CancelGoal, f"{ACTION}/_action/cancel_goal")
        self._reset = self.create_client(Trigger, f"{BRIDGE}/reset")
        self._e_stop = self.create_publisher(Bool, "e_stop", 1)
        config = settings(self, WEB)
        subscribe(self, CompressedImage, "camera/image/compressed", self._on_image, qos_profile_sensor_data)
        subscribe(self, FEEDBACK, f"{ACTION}/_action/feedback", self._on_feedback, 10)
        subscribe(self, GoalStatusArray, f"{ACTION}/_action/status", self._on_status, LATCHED)
        subscribe(self, String, "instruction", self._on_instruction, LATCHED)
        subscribe(self, NavigationAction, "vlm_nav/decision", self._on_decision, 10)
        subscribe(self, DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        for name in (SERVER, BRIDGE):
            on_heartbeat(partial(subscribe, self), name, partial(self.view.beat, name))
        steady_timer(self, POLL_S, self._poll)
        steady_timer(self, PRESS_S, self._press)
        self._page = PageServer(config, lambda: self.view.snapshot(time.monotonic()), self._take)
        self.get_logger().info(f"page: {self._page.url}")
        if not config.local and not config.token:
            self.get_logger().warning(
                f"whoever reaches {self._page.url} can drive the robot: set the parameter token, or host:=127.0.0.1"
            )

    def close(self) -> None:
        """Cancel the page's own goal, wait for its end, and end the server."""
        self._client.cancel()
        end = time.monotonic() + STOP_S
        while self._client.running and time.monotonic() < end:
            time.sleep(POLL_S)
        self._page.close()

    def destroy_node(self) -> None:
        """Destroy the node, with the action client that rclpy leaves behind."""
        self._client.destroy()
        super().destroy_node()

    def _take(self, command: Command) -> None:
        """Take a command, in the page's thread; raise what its giver can read."""
        if command.do == "start":
            if self._client.running:
                raise RuntimeError("a goal is under way; stop it first")
            Request(instruction_of(command.instruction))
        self._commands.append(command)

    def _poll(self) -> None:
        commands, self._commands = self._commands, []
        for command in commands:
            self._carry_out(command)
        if time.monotonic() >= self._reset_at:
            self._reset_at = math.inf
            self._call_reset()
        pursuit = self._client.pursuit
        self.view.ours = self._client.running
        if self._client.running and pursuit is not None:
            self.view.note = pursuit.note

    def _carry_out(self, command: Command) -> None:
        if command.do == "start" and not self._client.running:
            self._sent_at = time.monotonic()
            self._client.send(Request(instruction_of(command.instruction), dry_run=command.dry_run))
        elif command.do == "stop":
            self._client.cancel()
            if not self._client.running:
                self._stop_others()
        elif command.do == "e_stop":
            self._pressed = True
            self._press()
        elif command.do == "reset":
            self._pressed = False
            self._e_stop.publish(Bool(data=False))
            # Topic and service are no queue: the bridge refuses a reset that overtakes the end of the emergency stop.
            self._reset_at = time.monotonic() + RESET_S

    def _stop_others(self) -> None:
        """Cancel all goals, as a request without an identity and a time does: another client's may run."""
        if not self._cancel_all.service_is_ready():
            self.view.note = f"NOT STOPPED: {SERVER} is gone. If the robot moves, use EMERGENCY STOP"
            return
        self.view.note = "stop sent"
        self._cancel_all.call_async(CancelGoal.Request()).add_done_callback(self._on_cancelled)

    def _on_cancelled(self, future: Any) -> None:
        if not self._client.running:
            self.view.note = "stop: the goal is cancelled" if future.result().goals_canceling else "no goal runs"

    def _call_reset(self) -> None:
        if not self._reset.service_is_ready():
            self.view.outcome = f"no service {BRIDGE}/reset: is {BRIDGE} running?"
            return
        self._reset.call_async(Trigger.Request()).add_done_callback(
            lambda future: self._show(f"{BRIDGE}: {future.result().message or 'reset'}")
        )

    def _show(self, outcome: str) -> None:
        self.view.outcome = outcome

    def _press(self) -> None:
        """Repeat a pressed emergency stop until it is reset: a bridge that starts only now must get it too."""
        if self._pressed:
            self._e_stop.publish(Bool(data=True))
            received = self._e_stop.get_subscription_count()
            words = "emergency stop sent" if received else f"NOBODY LISTENS to e_stop: is {BRIDGE} running?"
            self.view.outcome = words

    def _on_end(self, end: GoalEnd) -> None:
        words = " · ".join(closing_words(end, self._client.server, time.monotonic() - self._sent_at))
        self.get_logger().info(words)
        self.view.note = words

    def _on_image(self, image: CompressedImage) -> None:
        self._page.show(bytes(image.data))
        self.view.frame(time.monotonic())

    def _on_feedback(self, message: Any) -> None:
        self.view.progress = progress_of(message.feedback)

    def _on_status(self, message: GoalStatusArray) -> None:
        self.view.active_goals = sum(each.status in RUNNING for each in message.status_list)

    def _on_instruction(self, message: String) -> None:
        self.view.instruction = message.data

    def _on_decision(self, action: NavigationAction) -> None:
        source = SOURCE_WORDS.get(action.source, str(action.source))
        self.view.decide(action.goal, action.step, action_text(action), source, action.reasoning)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        own = self.get_namespace().lstrip("/")
        now = time.monotonic()
        for line in message.status:
            node, _, _ = line.name.partition(":")
            if node.rpartition("/")[0] == own:
                self.view.health(status_of(line), now)


def main() -> None:
    """Run the node."""
    sys.exit(run(Web, Web.close))


if __name__ == "__main__":
    main()
