"""A goal of vlm_nav: its decisions are sent until the executor took them up, and its end is a HOLD that was taken."""

from __future__ import annotations

import math
import threading
from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import pytest
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import ActionStatus, NavigationAction

from spec_vlm_nav.action_publisher import POLL_S
from spec_vlm_nav.link_monitor import LinkMode, LinkMonitor
from spec_vlm_nav.messages import KINDS, SIZES
from spec_vlm_nav.motion import Outcome
from spec_vlm_nav.navigation_goal import End, NavigationGoal
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.navigator_interfaces import Decision, State
from spec_vlm_nav.nodes import goal
from spec_vlm_nav.nodes.goal import ERROR, RESEND_HOLD_S, RESEND_S, Goal
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.vlm_nav import VlmNav
from speculation.language.prompts import ActionKind, ActionSize
from speculation.language.prompts import NavigationAction as Action

CONFIG = NavigatorConfig()
CODES = NavigateByInstruction.Result
LEFT_SMALL = Action(ActionKind.TURN_LEFT, ActionSize.SMALL)
LEFT_LARGE = Action(ActionKind.TURN_LEFT, ActionSize.LARGE)


class Handle:
    """A goal handle that was cancelled before it began."""

    def __init__(self) -> None:
        self.request = NavigateByInstruction.Goal()
        self.is_cancel_requested = True
        self.ended = ""
        self.fed: list[tuple[str, str, str, list[str]]] = []

    def publish_feedback(self, feedback: Any) -> None:
        self.fed.append((feedback.state, feedback.answer, feedback.link_state, list(feedback.done)))

    def end(self, how: str) -> None:
        self.ended = how

    canceled = partialmethod(end, "canceled")
    abort = partialmethod(end, "aborted")
    succeed = partialmethod(end, "succeeded")


class Node:
    """What a goal needs of VlmNav. The executor takes an action only when it was sent for the `takes`-th time."""

    def __init__(self, takes: int) -> None:
        self.now, self.takes = 100.0, takes
        self.sent: list[tuple[float, NavigationAction]] = []
        self.decided: list[NavigationAction] = []
        self.config = CONFIG
        self.monitor = LinkMonitor(CONFIG.link)
        self.inputs: Any = SimpleNamespace(statuses={}, status_at=100.0, travelled=0.0, place=lambda: None)
        self.out = SimpleNamespace(
            actions=SimpleNamespace(publish=self.take),
            decisions=SimpleNamespace(publish=self.decided.append),
            state=lambda state, reason: None,
            instruction=lambda text: None,
        )
        self.resumption: Any = SimpleNamespace(
            latches=None, begin=lambda kept: None, keep=lambda: None, end=lambda: None
        )
        self.decoder: Any = SimpleNamespace(link=None, objects=lambda limit_s, mode=None: None)
        self.errors: list[str] = []

    def take(self, message: NavigationAction) -> None:
        self.sent.append((self.now, message))
        if len(self.sent) >= self.takes:
            self.reports(message.step, ActionStatus.DONE, message.kind, message.size)

    def reports(self, step: int, outcome: int, kind: int, size: int, progress: float = 0.0) -> None:
        status = ActionStatus(
            goal=7, step=step, outcome=outcome, kind=kind, size=size, progress=progress, remaining=0.1
        )
        self.inputs.statuses[7, step] = status

    def get_logger(self) -> Any:
        return SimpleNamespace(info=lambda text: None, warning=lambda text: None, error=self.errors.append)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def running(
    node: Node, monkeypatch: pytest.MonkeyPatch, instruction: str = "find the silver bottle", dry: bool = False
) -> Goal:
    monkeypatch.setattr(goal, "time", node)
    made = Goal(node, Handle(), 7, NavigationGoal(instruction, dry=dry))  # type: ignore[arg-type]
    made._wake = SimpleNamespace(is_set=lambda: True)  # type: ignore[assignment]
    return made


def test_a_hold_that_was_lost_on_the_way_is_sent_again_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(takes=4)
    result = running(node, monkeypatch).run()
    assert (result.error_msg, result.error_code) == ("cancelled", CODES.CANCELLED)
    assert len(node.sent) == 4 and {message.kind for _, message in node.sent} == {NavigationAction.HOLD}
    assert len({message.step for _, message in node.sent}) == 1, "the executor knows repetitions by their step"
    apart = [after - before for (before, _), (after, _) in zip(node.sent, node.sent[1:], strict=False)]
    assert max(apart) <= RESEND_HOLD_S + 2 * POLL_S


def test_every_end_has_a_code_and_only_a_stop_has_none() -> None:
    assert ERROR.keys() == set(End)
    assert [end for end, code in ERROR.items() if code == CODES.NONE] == [End.STOPPED]


def test_a_goal_that_fails_holds_the_robot_and_waits_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for takes, words in ((3, ""), (10_000, "did not confirm the HOLD")):
        node = Node(takes)
        made = running(node, monkeypatch)
        made.handle.is_cancel_requested = False
        node.inputs.frame_after = lambda moment, stale_s: "no frame"
        result = made.run()
        assert "AttributeError" in result.error_msg and result.error_msg.endswith(words)
        assert {message.kind for _, message in node.sent} == {NavigationAction.HOLD}
        assert len(node.sent) == 3 or words


@pytest.mark.parametrize(
    ("takes", "code", "words", "ended"),
    [
        (2, CODES.NONE, "told to stop: the robot stands", "succeeded"),
        (10_000, CODES.ROBOT_FAULT, "told to stop; action_executor did not confirm the HOLD", "aborted"),
    ],
)
def test_an_instruction_to_stop_holds_the_robot_and_asks_no_model(
    takes: int, code: int, words: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(takes)
    made = running(node, monkeypatch, "Arrête !")
    made.handle.is_cancel_requested = False
    result = made.run()
    assert (result.error_code, result.error_msg, made.handle.ended) == (code, words, ended)
    assert {message.kind for _, message in node.sent} == {NavigationAction.HOLD}


def test_a_dry_run_sends_nothing_that_could_move_a_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(takes=1)
    assert running(node, monkeypatch, dry=True).run().error_msg == "cancelled"
    assert not node.sent and node.decided


def test_a_node_that_stops_acting_in_the_middle_of_a_goal_holds_the_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The goal does not look at the clock: the node sends the HOLD itself."""
    node: Any = Node(takes=3)
    node._current = running(node, monkeypatch)
    node._current._wake = threading.Event()
    node._current._sleep = node.sleep
    node._current._navigator._publisher._sleep = node.sleep
    node._goal_lock = threading.Lock()
    node._running = SimpleNamespace(acquire=lambda timeout: False)
    node._write_trace = lambda: None
    VlmNav.deactivate(node)
    assert [message.kind for _, message in node.sent] == [NavigationAction.HOLD] * 3
    assert node._current._over() is End.SHUTDOWN and not node.errors


def test_an_extension_that_was_lost_is_sent_again_and_the_motion_has_not_ended_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the executor reports on the size before is not the end of the action."""
    node = Node(takes=10_000)
    made = running(node, monkeypatch)
    left, small, large = KINDS[ActionKind.TURN_LEFT], SIZES[ActionSize.SMALL], SIZES[ActionSize.LARGE]
    made.act(Decision(0, LEFT_SMALL, complete=False))
    assert made.execution(0) is None
    node.reports(0, ActionStatus.DONE, left, small, 0.26)
    ended = made.execution(0)
    assert ended is not None and ended.outcome is Outcome.DONE
    made.act(Decision(0, LEFT_LARGE, complete=False))
    node.now += RESEND_S + 0.1
    waiting = made.execution(0)
    assert waiting is not None and (waiting.outcome, waiting.remaining) == (Outcome.RUNNING, math.inf)
    assert [message.size for _, message in node.sent] == [small, large, large]
    node.reports(0, ActionStatus.RUNNING, left, large, 0.3)
    assert made.execution(0).remaining == pytest.approx(0.1)  # type: ignore[union-attr]
    node.reports(0, ActionStatus.BLOCKED, left, small, 0.3)
    assert made.execution(0).outcome is Outcome.BLOCKED  # type: ignore[union-attr]
    assert not any(message.complete for message in node.decided), "whole answers only"


@pytest.mark.parametrize("extended", [False, True])
def test_a_motion_ends_where_its_executor_was_started_anew_and_is_not_begun_again(
    extended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new executor knows nothing of it: its whole size on top of what was covered would be too far."""
    node = Node(takes=10_000)
    inputs = Inputs.__new__(Inputs)
    inputs.statuses, inputs.status_at = {}, 0.0
    node.inputs = inputs
    monkeypatch.setattr(Inputs, "travelled", 0.0, raising=False)
    made = running(node, monkeypatch)
    left, small = KINDS[ActionKind.TURN_LEFT], SIZES[ActionSize.SMALL]
    made.act(Decision(0, LEFT_SMALL, complete=False))
    inputs._on_status(ActionStatus(goal=7, step=0, outcome=ActionStatus.RUNNING, kind=left, size=small, progress=0.1))
    if extended:
        made.act(Decision(0, LEFT_LARGE))
    inputs._on_status(ActionStatus())
    before = len(node.sent)
    node.now += 2 * RESEND_S
    ended = made.execution(0)
    assert ended is not None and (ended.outcome, ended.moved) == (None, pytest.approx(0.1))
    assert "started anew" in ended.message and len(node.sent) == before


def test_feedback_on_a_growing_answer_is_bounded_and_a_change_of_state_or_link_goes_out_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(takes=1)
    made = running(node, monkeypatch)
    for letters in range(100):
        made.writing("x" * letters, "")
        node.now += 0.01
    fed = made.handle.fed
    assert 8 <= len(fed) <= 11 and fed[-1][1].startswith("x")
    node.now += 0.1
    made.writing("the end", "")
    made.report(State.THINKING)
    made.writing("too early for a message of its own", "")
    assert fed[-1][1] == "the end"
    made.report(State.MOVING)
    assert fed[-1][1] == "too early for a message of its own"
    made.report(State.THINKING)
    made.report(State.THINKING)
    assert [state for state, *_ in fed].count("thinking") == 2
    node.monitor.mode = LinkMode.DEGRADED
    made.writing("", "")
    assert fed[-1][2] == "degraded"
