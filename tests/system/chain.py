"""The whole chain as processes, for the tests that need it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from spec_vlm_nav_interfaces.action import NavigateByInstruction

from spec_vlm_nav.graph import SIM_GRAPH
from spec_vlm_nav.runner import Line, Runner, free_address
from tests.system.conftest import LIMIT_S, until
from vlm_nav_evaluation.nodes.observer import Observer

TURN_LEFT = 2
STANDS = 0.01
CODES = NavigateByInstruction.Result
FIND = "find the silver bottle"
MANAGED = {"go2_bridge", "action_executor", "vlm_nav"}
"""Whose end the lifecycle manager notices."""


@dataclass
class Record:
    """What went over the topics that matter here, in order."""

    kinds: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    apis: list[int] = field(default_factory=list)

    def __call__(self, topic: str, message: Any) -> None:
        if topic == "navigation_action":
            self.kinds.append(message.kind)
        elif topic == "navigation_state":
            self.states.append(message.data)
        elif topic == "api/sport/request":
            self.apis.append(message.header.identity.api_id)

    def clear(self) -> None:
        """Forget everything."""
        for kept in (self.kinds, self.states, self.apis):
            kept.clear()

    def said(self, words: str) -> bool:
        return any(words in state for state in self.states)


class SentGoal:
    """A goal as any action client sends it: refused, replaced and cancelled ones are seen as the server ends them.

    Everything but `wait` runs in the thread that spins the client's node, where `call` puts it: called from another
    one, rclpy's action client may get the answer before it has noted the question.
    """

    def __init__(self, client: Any, call: Callable[[Callable[[], None]], Any], instruction: str, time_s: float) -> None:
        self._call = call
        self._done = threading.Event()
        self._handle: Any = None
        self._answer: Any = None
        goal = NavigateByInstruction.Goal(instruction=instruction)
        goal.time_allowance.sec = int(time_s)
        call(lambda: client.send_goal_async(goal).add_done_callback(self._on_handle))

    def wait(self, timeout: float) -> Any:
        """Return the server's answer, with `status` and `result`; None if none has come within `timeout` seconds."""
        self._done.wait(timeout)
        return self._answer

    def end(self) -> Any:
        """Return the answer once it is there."""
        until(lambda: self.wait(0.05) is not None, "goal ends")
        return self._answer

    def cancelled(self) -> Any:
        """Ask the server to cancel, and return the result once it did."""
        self._call(self._handle.cancel_goal_async)
        answer = self.end()
        assert answer.status == GoalStatus.STATUS_CANCELED, answer
        return answer.result

    def _on_handle(self, future: Any) -> None:
        self._handle = future.result()
        self._handle.get_result_async().add_done_callback(self._on_answer)

    def _on_answer(self, future: Any) -> None:
        self._answer = future.result()
        self._done.set()


@dataclass
class Robot:
    runner: Runner
    observer: Observer
    record: Record

    def __post_init__(self) -> None:
        self.names = self.runner.names
        self._client = ActionClient(self.observer.node, NavigateByInstruction, "navigate_by_instruction")

    def close(self) -> None:
        """Free the action client before its node is destroyed, in the thread that may just now wait on it."""
        freed = threading.Event()
        self.observer.call(self._client.destroy)
        self.observer.call(freed.set)
        assert freed.wait(LIMIT_S), "the observer's thread hangs"

    def repair(self) -> None:
        """Start again what a test has ended; wait until all nodes are active and the robot stands."""
        ended = [name for name in self.names if not self.runner.alive(name)]
        if MANAGED & set(ended):
            self.runner.wait_until(lambda: not self.observer.active, "the manager misses a node", LIMIT_S)
        if ended:
            self.runner.start(*ended)
        self.runner.wait_until(lambda: self.observer.ready() and self.stands, "all nodes ready again", LIMIT_S)
        if "vlm_nav" in ended:
            # A goal that comes before both ends have found each other is lost: ask for nothing until that is refused.
            until(lambda: self.send(" ").wait(1.0) is not None, "goals arrive")

    def send(self, instruction: str = FIND, time_s: float = 0.0) -> SentGoal:
        """Send a goal and return at once."""
        until(self._client.server_is_ready, "goals are taken")
        return SentGoal(self._client, self.observer.call, instruction, time_s)

    @property
    def stands(self) -> bool:
        return self.observer.speed < STANDS

    def turns(self) -> int:
        return self.record.kinds.count(TURN_LEFT)


@contextmanager
def simulated(model: Path, line: Line, mode: str = "fsd", **more: str) -> Iterator[Robot]:
    """Start everything with `model` as draft and target, and wait until all is active. `more`: graph arguments."""
    record = Record()
    arguments = {
        "seed": "3",
        "mode": mode,
        "target_model": str(model),
        "draft_model": str(model),
        "verifier": free_address(),
        **more,
    }
    with Runner(SIM_GRAPH, arguments, line) as runner, Observer(record) as observer:
        runner.start()
        runner.wait_until(observer.ready, "all nodes ready", LIMIT_S)
        with closing(Robot(runner, observer, record)) as robot:
            yield robot
