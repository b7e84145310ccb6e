"""What a goal's client sees while it runs: state, the answer as it is committed, what was done, the link."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction

from edge_drafter.decoder import EdgeDecoder
from spec_vlm_nav.answer_stats import AnswerStats
from spec_vlm_nav.image_alarm import DraftWatch
from spec_vlm_nav.link_monitor import LinkMode, LinkMonitor
from spec_vlm_nav.navigation_goal import NavigationGoal
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.navigator_interfaces import State
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.outputs import Outputs
from spec_vlm_nav.nodes.resumption import Resumption

FEEDBACK_S = 0.1
"""Feedback on an answer that grows is no more frequent."""
LINK = {
    LinkMode.NOMINAL: "the verifier is back and decides again",
    LinkMode.DEGRADED: "the link is lost: the draft model decides alone, small actions at half speed",
    LinkMode.HOLD: "the link is lost: the robot stands until the verifier is back",
}


class Host(Protocol):
    """What outlives a goal: the node."""

    config: NavigatorConfig
    monitor: LinkMonitor
    answers: AnswerStats
    watch: DraftWatch
    inputs: Inputs
    out: Outputs
    resumption: Resumption

    @property
    def decoder(self) -> EdgeDecoder:
        """The edge's decoder."""

    def get_logger(self) -> Any:
        """Return the node's logger."""


class Feedback:
    """Goes out when the state, its reason or the link's mode change, and as the answer grows."""

    def __init__(self, node: Host, handle: Any, goal: NavigationGoal) -> None:
        self._node, self._handle, self._goal = node, handle, goal
        self._message = NavigateByInstruction.Feedback()
        self._sent_at, self._unsent = -math.inf, False
        self._mode = node.monitor.mode
        self._from = node.inputs.travelled

    @property
    def state(self) -> str:
        """Thinking, moving or holding."""
        return str(self._message.state) or "beginning"

    def report(self, state: State, reason: str) -> None:
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

    def understood(self, instruction: str) -> None:
        """Note what is looked for; it goes out with the report that follows."""
        self._message.understood = instruction

    def writing(self, answer: str, guess: str) -> None:
        """Note the running answer."""
        message = self._message
        self._note_link()
        if (message.answer, message.guess) != (answer, guess):
            # Noted in any case: what is too early for a message of its own goes out with the next.
            message.answer, message.guess, self._unsent = answer, guess, True
        if self._unsent and time.monotonic() - self._sent_at >= FEEDBACK_S:
            self._send()

    def decided(self, action: NavigationAction) -> None:
        """Note a decision; it goes out with the report that follows."""
        self._message.action = action

    def count(self, stats: DecodingStats) -> None:
        """Note how an answer was decoded."""
        self._message.tokens_drafted += stats.drafted
        self._message.tokens_accepted += stats.accepted
        self._message.link_rtt = stats.link_rtt_s

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
        message.done = [action.text for action in self._goal.done]
        self._sent_at, self._unsent = time.monotonic(), False
        self._handle.publish_feedback(message)
