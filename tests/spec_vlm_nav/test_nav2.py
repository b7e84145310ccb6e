"""Actions by nav2, on a time of the test's own: what passes of its velocities, and what each of its failures means."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.executor import BLOCKED, DONE, SUPERSEDED, Executor
from spec_vlm_nav.messages import OUTCOME_CODE
from spec_vlm_nav.motion import Outcome
from spec_vlm_nav.nav2 import GRACE_S, QUIET_S, Behaviour, Nav2, Nav2Goal, Nav2Motion, Result
from spec_vlm_nav.safety import ZERO, Velocity
from tests.spec_vlm_nav.test_executor import (
    CONFIG,
    FORWARD,
    HOLD,
    LARGE,
    LEFT,
    NAMES,
    RIGHT,
    SMALL,
    TICK_S,
    TIMEOUT_S,
    Robot,
)

FAULT = OUTCOME_CODE[Outcome.FAULT]
PERIOD = 5
"""nav2's behaviours run at 10 Hz, each fifth tick."""
ABORTS = {
    "collides": Result("aborted", 723, "COLLISION_AHEAD", "Collision Ahead"),
    "lost": Result("aborted", 722, "TF_ERROR"),
    "humble": Result("aborted"),
    "other": Result("canceled", 0, "NONE"),
}
LATE = Result("aborted", 721, "TIMEOUT")


class Server:
    """nav2's behaviours as the robot's odometry sees them. `mode` names what goes wrong."""

    def __init__(self, robot: Nav2Robot, mode: str) -> None:
        self.robot, self.mode = robot, mode
        self.goals: list[Nav2Goal] = []
        self.cancelled: list[int] = []
        self.speeds = Velocity(vx=0.8), Velocity(wz=1.5)
        self._goal: Nav2Goal | None = None
        self._new = False
        self._sent_at = self._from = 0.0

    def is_there(self, behaviour: Behaviour) -> bool:
        return self.mode != "missing"

    def send(self, goal: Nav2Goal) -> None:
        self.goals.append(goal)
        self._goal, self._new, self._sent_at = goal, True, self.robot.now

    def cancel(self, number: int) -> None:
        goal = self._goal
        if self._new:
            return
        self.cancelled.append(number)
        if goal is None or goal.number != number:
            self.robot.nav2.on_gone(number)
        elif self.mode not in ("stubborn", "deaf", "dies"):
            self._finish(Result("canceled", 0, "NONE"))

    def cycle(self) -> None:
        """Do what the behaviours do 10 times a second."""
        goal, robot, nav2 = self._goal, self.robot, self.robot.nav2
        if goal is None or self.mode == "deaf":
            return
        turning = goal.behaviour is Behaviour.SPIN
        at, run = (robot.yaw if turning else robot.x), robot.now - self._sent_at
        if self._new:
            self._new, self._from = False, at
            nav2.on_answer(goal.number, self.mode != "rejects", robot.now)
            if self.mode == "rejects":
                self._goal = None
            return
        if self.mode == "dies" and run > 0.5:
            return
        nav2.on_feedback(goal.number, robot.now)
        if self.mode in ABORTS and run > 0.3:
            self._finish(ABORTS[self.mode])
        elif abs(at - self._from) >= abs(goal.amount) or self.mode == "elsewhere":
            self._finish(Result("succeeded", 0, "NONE"))
        elif run > goal.allowance_s and self.mode != "endless":
            self._finish(LATE)
        elif self.mode == "stands":
            nav2.on_velocity(ZERO, robot.now)
        elif self.mode not in ("unheard", "endless"):
            speed = self.speeds[turning]
            nav2.on_velocity(Velocity(speed.vx, speed.vy, math.copysign(speed.wz, goal.amount)), robot.now)

    def _finish(self, result: Result) -> None:
        goal, self._goal = self._goal, None
        assert goal is not None
        if self.mode != "unheard":
            self.robot.nav2.on_velocity(ZERO, self.robot.now)
        self.robot.nav2.on_result(goal.number, result)


class Nav2Robot(Robot):
    """A robot whose executor moves it by nav2, ticked as `nodes/action_executor.py` does."""

    def __init__(self, mode: str = "") -> None:
        self.server = Server(self, mode)
        self.nav2 = Nav2(self.server, TIMEOUT_S)
        self._ticks = 0
        super().__init__()
        motion = partial(Nav2Motion, self.nav2)
        self.executor = Executor(CONFIG, NAMES, TIMEOUT_S, self.ended.append, motion)
        for _ in range(3):
            self.live()

    def live(self, *given: object, **named: object) -> None:
        super().live(*given, **named)  # type: ignore[arg-type]
        if self._ticks % PERIOD == 0:
            self.server.cycle()
        self._ticks += 1
        if not self.executor.running:
            self.nav2.end(self.now, GRACE_S)
            self.nav2.tick(self.now)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.live()


@pytest.mark.parametrize(("kind", "goal"), [(FORWARD, 0.25), (LEFT, math.radians(15)), (RIGHT, -math.radians(15))])
def test_an_action_is_one_goal_of_its_size_speed_and_time_and_ends_where_it_says(kind: int, goal: float) -> None:
    robot = Nav2Robot()
    robot.act(kind, scale=0.5)
    report = robot.run()
    assert (report.outcome, report.message, robot.moves) == (DONE, "", False)
    assert robot.x + robot.yaw == pytest.approx(goal, abs=0.03)
    (sent,) = robot.server.goals
    assert sent.behaviour is (Behaviour.DRIVE if kind == FORWARD else Behaviour.SPIN)
    assert sent.amount == pytest.approx(goal, abs=0.03) and abs(sent.amount) < abs(goal)
    assert sent.speed == 0.5 * (CONFIG.forward_speed if kind == FORWARD else CONFIG.turn_speed)
    assert sent.allowance_s == pytest.approx(abs(goal) / sent.speed * 2 + 2)
    robot.wait(1.0)
    assert robot.nav2.is_idle and not robot.server.cancelled, "nav2 ends its goal by itself"


@pytest.mark.parametrize("late", [0.2, 1.5])
def test_an_answer_that_goes_on_sends_what_is_left_once_nav2_can_take_it(late: float) -> None:
    robot = Nav2Robot()
    robot.act(FORWARD, SMALL, complete=False)
    robot.wait(late)
    robot.act(FORWARD, LARGE, again=True)
    assert robot.run().outcome == DONE
    assert robot.x == pytest.approx(0.75, abs=0.03) and len(robot.server.goals) == 2
    assert not robot.server.cancelled


@pytest.mark.parametrize("silent", NAMES)
def test_silence_stops_the_robot_at_once_and_what_is_left_is_asked_for_anew(silent: str) -> None:
    robot = Nav2Robot()
    robot.act(FORWARD, LARGE)
    robot.wait(1.0)
    assert robot.moves
    others = tuple(name for name in NAMES if name != silent)
    for _ in range(round(TIMEOUT_S / TICK_S) + 1):
        robot.live(alive=others)
    assert not robot.moves and silent in robot.report.message
    for _ in range(50):
        robot.live(alive=others)
    assert robot.server.cancelled and robot.nav2.is_idle and not robot.moves
    assert robot.run().outcome == DONE and robot.x == pytest.approx(0.75, abs=0.03)


def test_what_ends_an_action_ends_the_goal_and_a_newer_action_waits_for_that() -> None:
    robot = Nav2Robot()
    robot.act(FORWARD, LARGE)
    robot.wait(0.5)
    robot.act(HOLD, 0)
    assert not robot.moves and robot.ended[0].outcome == SUPERSEDED
    robot.wait(1.0)
    assert robot.server.cancelled == [1]
    robot.act(LEFT)
    robot.act(RIGHT)
    assert robot.run().outcome == DONE
    assert robot.server.cancelled == [1, 2], "the second once it was accepted"
    assert [goal.amount > 0.0 for goal in robot.server.goals] == [True, True, False]
    assert robot.yaw == pytest.approx(-math.radians(15), abs=0.03), "the turn that was replaced moved nothing"


@pytest.mark.parametrize(
    ("mode", "outcome", "limit_s", "words"),
    [
        ("missing", FAULT, 0.1, "nav2's action server drive_on_heading is not there: start nav2"),
        ("rejects", FAULT, 0.3, "nav2: drive_on_heading rejected a goal"),
        ("deaf", FAULT, 2.2, "nav2: drive_on_heading did not answer a goal within 2 s"),
        ("dies", FAULT, 1.8, "nav2: drive_on_heading was silent for 1 s in the middle of a goal"),
        ("endless", FAULT, 7.0, "nav2: drive_on_heading did not end within its time allowance of 5.8 s"),
        ("collides", BLOCKED, 0.6, "nav2: drive_on_heading aborted with COLLISION_AHEAD (723): Collision Ahead"),
        ("stands", BLOCKED, 6.2, "nav2: drive_on_heading aborted with TIMEOUT (721)"),
        ("unheard", FAULT, 6.2, "no velocity came on cmd_vel"),
        ("lost", FAULT, 0.6, "nav2: drive_on_heading aborted with TF_ERROR (722)"),
        ("humble", BLOCKED, 0.6, "this version gives no reason"),
        ("other", FAULT, 0.6, "cancelled by somebody else"),
        ("elsewhere", FAULT, 0.4, "nav2 says that it is there, odometry shows 0.00 m of 0.75 m"),
    ],
)
def test_each_failure_ends_the_action_in_bounded_time_with_its_reason(
    mode: str, outcome: int, limit_s: float, words: str
) -> None:
    robot = Nav2Robot(mode)
    robot.act(FORWARD, LARGE)
    report = robot.run()
    assert report.outcome == outcome and words in report.message, report
    assert report.elapsed <= limit_s and not robot.moves
    robot.wait(3.0)
    robot.act(LEFT)
    again = robot.run()
    assert again.outcome == outcome and again.elapsed <= limit_s, "the next action is not held up by the one before"
    if mode in ("deaf", "dies"):
        assert "has not ended a goal 2 s after it was told to" in again.message


def test_a_robot_that_does_not_move_is_blocked_by_odometry_and_the_goal_cancelled() -> None:
    """As where the bridge's guard lets nothing pass."""
    robot = Nav2Robot()
    robot.shown = 0.0
    robot.act(FORWARD, LARGE)
    report = robot.run()
    assert report.outcome == BLOCKED and report.elapsed < 5.2 and "something blocks the robot" in report.message
    robot.wait(0.2)
    assert robot.server.cancelled == [1] and robot.nav2.is_idle


def test_a_late_answer_to_a_goal_that_was_given_up_is_cancelled() -> None:
    robot = Nav2Robot("deaf")
    robot.act(FORWARD)
    robot.run()
    robot.server.mode = ""
    robot.wait(0.5)
    assert robot.server.cancelled and robot.nav2.is_idle and not robot.moves and robot.x == 0.0


numbers = st.one_of(st.floats(-2.0, 2.0), st.sampled_from([math.nan, math.inf, -math.inf]))


@settings(max_examples=30)
@given(st.sampled_from([FORWARD, LEFT, RIGHT]), st.lists(st.builds(Velocity, numbers, numbers, numbers), max_size=30))
def test_of_an_action_only_what_leads_its_way_passes_whatever_nav2_commands(
    kind: int, commanded: list[Velocity]
) -> None:
    robot = Nav2Robot("endless")
    robot.nav2.on_velocity(Velocity(vx=0.5), robot.now)
    robot.act(kind, LARGE)
    assert not robot.moves, "nothing passes before nav2 took the goal"
    for velocity in commanded:
        robot.wait(PERIOD * TICK_S)
        robot.nav2.on_velocity(velocity, robot.now)
        robot.live()
        passed = robot.executor.velocity
        assert passed.vy == 0.0
        if kind == FORWARD:
            assert not velocity.finite or 0.0 <= passed.vx <= min(max(velocity.vx, 0.0), CONFIG.forward_speed)
            assert abs(passed.wz) <= 0.15 and (passed.wz == 0.0 or passed.vx > 0.0)
        else:
            sign = 1.0 if kind == LEFT else -1.0
            assert passed.vx == 0.0 and 0.0 <= sign * passed.wz <= CONFIG.turn_speed
        assert velocity.finite or passed == ZERO


def test_what_nav2_commands_for_others_passes_once_it_has_stood_after_our_goal() -> None:
    robot = Nav2Robot()

    def passes(seconds: float) -> bool:
        for _ in range(round(seconds / TICK_S)):
            robot.live()
            robot.nav2.on_velocity(Velocity(vx=-0.2), robot.now)
            robot.nav2.tick(robot.now)
        return robot.nav2.passing(robot.now) != ZERO

    robot.wait(2 * QUIET_S)
    assert robot.executor.is_free and passes(0.1)
    robot.act(FORWARD)
    assert not robot.executor.is_free and robot.run().outcome == DONE
    assert not robot.executor.is_free, "between two actions of a goal nobody else moves the robot"
    robot.act(HOLD, 0)
    assert robot.executor.is_free and not passes(2.0), "it goes on where our goal ended"
    robot.wait(2 * QUIET_S)
    assert passes(0.1)
    robot.wait(TIMEOUT_S + TICK_S)
    assert robot.nav2.passing(robot.now) == ZERO, "silence"
