"""One running chain: goals cancelled, replaced and ended; every process killed or frozen at the wrong moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from action_msgs.msg import GoalStatus

from spec_vlm_nav.graph import VERIFIER_GRAPH
from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, HOLD
from spec_vlm_nav.nodes.process import NICENESS
from spec_vlm_nav.robots.go2 import SportApi
from spec_vlm_nav.runner import Runner, free_address
from speculation.trace import load
from tests.system.chain import CODES, FIND, Robot, simulated
from tests.system.conftest import PRIORITY, Lines, until
from vlm_nav_evaluation.report.timeline import steps

Verifiers = dict[str, Runner]


@pytest.fixture(scope="module")
def verifiers(turning_model: Path, stopping_model: Path, all_lines: Lines) -> Iterator[Verifiers]:
    """Verifiers by their addresses, whose models say 'turn left' and 'stop'; only the first runs."""
    made: Verifiers = {}
    with ExitStack() as stack:
        for model in (turning_model, stopping_model):
            address = free_address()
            given = {"target_model": str(model), "verifier": address}
            made[address] = stack.enter_context(Runner(VERIFIER_GRAPH, given, all_lines))
        next(iter(made.values())).start()
        yield made


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes the trace when a goal ends."""
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module")
def chain(turning_model: Path, verifiers: Verifiers, all_lines: Lines, trace: Path) -> Iterator[Robot]:
    """A robot that turns left for ever, in the default mode."""
    more = {"verifier": ",".join(verifiers), "start_verifier": "false", "trace": str(trace)}
    with simulated(turning_model, all_lines, "full", **more) as robot:
        yield robot


@pytest.fixture
def turning(chain: Robot, lines: Lines) -> Robot:
    """The robot that turns left for ever; what the test before has ended runs again."""
    chain.repair()
    chain.record.clear()
    return chain


def test_cancel_and_preemption_leave_a_standing_robot_and_have_codes_of_their_own(turning: Robot) -> None:
    turns = turning.turns()
    first = turning.send()
    until(lambda: turning.turns() > turns, "robot turns")
    until(lambda: "instruction" in turning.observer.last, "the instruction is on its topic")
    assert turning.observer.last["instruction"].data == FIND
    second = turning.send()
    replaced = first.end()
    assert replaced.status == GoalStatus.STATUS_ABORTED and replaced.result.error_code == CODES.PREEMPTED
    assert "newer goal" in replaced.result.error_msg
    before = turning.turns()
    until(lambda: turning.turns() > before, "the newer goal runs")
    assert second.cancelled().error_code == CODES.CANCELLED
    until(lambda: turning.stands and turning.record.kinds[-1] == HOLD, "the robot stands")


def test_while_the_verifier_is_away_the_draft_model_drives_slowly_and_the_goal_goes_on(
    turning: Robot, verifiers: Verifiers
) -> None:
    (verifier, _), goal = verifiers.values(), turning.send()
    until(lambda: turning.turns() >= 2, "robot turns")
    verifier.kill("verifier")

    def decides_alone() -> bool:
        action = turning.observer.last["navigation_action"]
        return bool(action.source == EDGE_ONLY and action.speed_scale == 0.5)

    until(decides_alone, "the draft model decides alone, for half the speed")
    assert goal.wait(0.0) is None
    verifier.start("verifier")
    until(lambda: turning.observer.last["navigation_action"].source == CLOUD_VERIFIED, "the verifier decides")
    before = turning.turns()
    until(lambda: turning.turns() > before, "the goal goes on")
    goal.cancelled()


@pytest.mark.skipif(not PRIORITY, reason="no process may run before others here")
def test_the_nodes_that_stop_the_robot_run_before_others(chain: Robot) -> None:
    def niceness(name: str) -> int:
        return os.getpriority(os.PRIO_PROCESS, chain.runner.pid(name))

    stopping = ("action_executor", "go2_bridge", "stop_watchdog")
    assert {niceness(name) for name in stopping} == {niceness("vlm_nav") + NICENESS}


@pytest.mark.parametrize("victim", ["action_executor", "vlm_nav"])
def test_a_node_that_dies_in_mid_motion_leaves_a_standing_robot(turning: Robot, victim: str) -> None:
    goal = turning.send()
    until(lambda: turning.observer.speed > 0.2, "robot turns")
    turning.runner.kill(victim)
    if victim == "action_executor":
        until(lambda: turning.record.apis[-1] == SportApi.STOP_MOVE, "the bridge stops the robot")
    until(lambda: turning.stands, "the robot stands")
    if victim == "vlm_nav":
        until(lambda: "vlm_nav silent" in turning.observer.last["action_status"].message, "the executor says why")
    else:
        until(lambda: turning.record.said("action_executor is silent"), "navigation says why")
        goal.cancelled()


def test_the_next_verifier_of_the_list_goes_on_with_the_goal_of_one_that_hangs_and_a_stop_ends_it(
    turning: Robot, verifiers: Verifiers, trace: Path
) -> None:
    (first, second), goal = verifiers.values(), turning.send(FIND, 1200.0)
    until(lambda: turning.turns() > 4, "the robot turns")
    second.start()
    frozen = first.pid("verifier")
    os.kill(frozen, signal.SIGSTOP)
    try:
        end = goal.end()
    finally:
        os.kill(frozen, signal.SIGCONT)
    answers = steps(load(trace))
    # Some of the turns may have been of the goal before, which goes on until this one takes over.
    assert end.status == GoalStatus.STATUS_SUCCEEDED and end.result.actions_executed > 1
    assert answers[-1].action == "stop" and answers[-1].whole.args["tokens"] > 0
    last = turning.observer.last
    assert last["navigation_action"].source == CLOUD_VERIFIED
    room = {"seed": 3, "difficulty": "middle", "target": "silver bottle", "layout": "room"}
    assert turning.observer.truth["room"] == room
    until(lambda: last["decoding_stats"].answer.startswith("Action: stop"), "figures of the answer")
    assert last["decoding_stats"].mode == "full"
