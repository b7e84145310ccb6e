"""The end of a goal in vlm_nav: its HOLD is sent until the executor took it, whatever the goal ended with."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction

from spec_vlm_nav.navigator import HOLD_S, POLL_S, NavigatorConfig
from spec_vlm_nav.nodes import vlm_nav
from spec_vlm_nav.nodes.vlm_nav import RESEND_HOLD_S, Goal, VlmNav

CONFIG = NavigatorConfig()


class Handle:
    """A goal handle that was cancelled before it began."""

    def __init__(self, dry: bool) -> None:
        self.request = NavigateByInstruction.Goal(instruction="find the silver bottle", dry_run=dry)
        self.is_cancel_requested = True
        self.ended = ""

    def publish_feedback(self, feedback: Any) -> None:
        pass

    def canceled(self) -> None:
        self.ended = "canceled"

    def abort(self) -> None:
        self.ended = "aborted"


class Node:
    """What a goal needs of VlmNav. The executor takes an action only when it was sent for the `takes`-th time."""

    def __init__(self, takes: int) -> None:
        self.now, self.takes = 100.0, takes
        self.sent: list[tuple[float, NavigationAction]] = []
        self.status: ActionStatus | None = None
        self.status_at = 100.0
        self.config, self.travelled, self.frame = CONFIG, 0.0, None
        self.actions = SimpleNamespace(publish=self.take)
        self.decisions = self.states = self.instructions = SimpleNamespace(publish=lambda message: None)
        self.decoder = SimpleNamespace(problem="", objects=lambda limit_s: None)
        self.errors: list[str] = []

    def take(self, message: NavigationAction) -> None:
        self.sent.append((self.now, message))
        if len(self.sent) >= self.takes:
            self.status = ActionStatus(goal=message.goal, step=message.step, outcome=ActionStatus.DONE)

    def get_logger(self) -> Any:
        return SimpleNamespace(info=lambda text: None, warning=lambda text: None, error=self.errors.append)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def goal(node: Node, monkeypatch: pytest.MonkeyPatch, dry: bool = False) -> Goal:
    monkeypatch.setattr(vlm_nav, "time", node)
    return Goal(node, Handle(dry), 7)  # type: ignore[arg-type]


def test_a_hold_that_was_lost_on_the_way_is_sent_again_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(takes=4)
    result = goal(node, monkeypatch).run()
    assert result.error_msg == "cancelled"
    assert len(node.sent) == 4 and {message.kind for _, message in node.sent} == {NavigationAction.HOLD}
    assert len({message.step for _, message in node.sent}) == 1, "the executor knows repetitions by their step"
    apart = [after - before for (before, _), (after, _) in zip(node.sent, node.sent[1:], strict=False)]
    assert max(apart) <= RESEND_HOLD_S + 2 * POLL_S


@pytest.mark.parametrize("superseded", [False, True])
def test_a_hold_that_is_never_taken_is_said(monkeypatch: pytest.MonkeyPatch, superseded: bool) -> None:
    node = Node(takes=10_000)
    running = goal(node, monkeypatch)
    running.superseded = superseded
    result = running.run()
    words = "a newer goal took over" if superseded else "cancelled"
    assert result.error_msg == f"{words}; action_executor did not confirm the HOLD"
    assert HOLD_S <= node.now - 100.0 < HOLD_S + 1.0


def test_a_goal_that_fails_holds_the_robot_and_waits_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(takes=3)
    running = goal(node, monkeypatch)
    running._handle.is_cancel_requested = False
    node.frame = "no frame"  # type: ignore[assignment]
    result = running.run()
    assert "AttributeError" in result.error_msg and "HOLD" not in result.error_msg
    assert [message.kind for _, message in node.sent] == [NavigationAction.HOLD] * 3
    lost = Node(takes=10_000)
    running = goal(lost, monkeypatch)
    running._handle.is_cancel_requested = False
    lost.frame = "no frame"  # type: ignore[assignment]
    assert running.run().error_msg.endswith("did not confirm the HOLD")


def test_a_dry_run_sends_nothing_that_could_move_a_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(takes=1)
    assert goal(node, monkeypatch, dry=True).run().error_msg == "cancelled"
    assert not node.sent


def test_a_node_that_ends_in_the_middle_of_a_goal_holds_the_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The goal decodes and does not look at the clock: the node sends the HOLD itself."""
    node: Any = Node(takes=3)
    running = goal(node, monkeypatch)
    closed: list[str] = []
    node._goal_lock, node._current = threading.Lock(), running
    node._running = SimpleNamespace(acquire=lambda timeout: False)
    node.decoder.close = lambda: closed.append("decoder")
    node._heartbeat = SimpleNamespace(close=lambda: closed.append("heartbeat"))
    node._write_trace = lambda: None
    VlmNav.close(node)
    assert [message.kind for _, message in node.sent] == [NavigationAction.HOLD] * 3
    assert running.superseded and closed == ["decoder", "heartbeat"] and not node.errors
