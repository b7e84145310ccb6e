"""The executor on a time of the test's own: bad odometry, silence and any order of commands move no robot."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spec_vlm_nav.executor import (
    BLOCKED,
    CAUSE_S,
    DONE,
    LEFT_GOALS,
    NO_ODOMETRY,
    RUNNING,
    SUPERSEDED,
    Command,
    Executor,
    Report,
)
from spec_vlm_nav.motion import FORGET_S, LAG_LIMIT_S, REACTION_S, MotionConfig
from spec_vlm_nav.odometry import LONGEST_S, OdometrySample
from spec_vlm_nav.safety import ZERO, Limits, SlewLimiter

CONFIG = MotionConfig()
TICK_S, TIMEOUT_S = 0.02, 0.2
NAMES = ("vlm_nav", "go2_bridge")
HOLD, FORWARD, LEFT, RIGHT, STOP, NOT_HERE = range(6)
SMALL, MEDIUM, LARGE = 1, 2, 3


class Robot:
    """The executor, and a robot that obeys its velocity; odometry at 50 Hz shows `shown` of the way."""

    def __init__(self, shown: float = 1.0, config: MotionConfig = CONFIG) -> None:
        self.now, self.x, self.yaw, self.shown = 100.0, 0.0, 0.0, shown
        self.ended: list[Report] = []
        self.executor = Executor(config, NAMES, TIMEOUT_S, self.ended.append)
        self.step, self.tick_s = 0, TICK_S
        for _ in range(3):
            self.live()

    def sample(self, x: float = 0.0, yaw: float = 0.0, stamp: float = 0.0) -> OdometrySample:
        """Return a message of this moment, off by `x`, `yaw` and `stamp`."""
        angle = (self.shown * self.yaw + yaw) / 2
        return OdometrySample(
            (self.shown * self.x + x, 0.0, 0.3),
            (0.0, 0.0, math.sin(angle), math.cos(angle)) if math.isfinite(angle) else (0.0, 0.0, angle, 1.0),
            self.now + stamp,
            self.now,
        )

    def live(self, alive: tuple[str, ...] = NAMES, sample: OdometrySample | None = None, odometry: bool = True) -> None:
        """One tick: the robot moves, heartbeats of `alive` and odometry arrive, then the timer runs."""
        velocity = self.executor.velocity
        self.now += self.tick_s
        self.x += velocity.vx * self.tick_s
        self.yaw += velocity.wz * self.tick_s
        for name in alive:
            self.executor.on_heartbeat(name, self.now)
        if odometry:
            self.executor.on_odometry(sample or self.sample())
        self.executor.tick(self.now)

    def act(
        self, kind: int, size: int = SMALL, *, again: bool = False, complete: bool = True, scale: float = 1.0
    ) -> None:
        self.step += not again
        self.executor.on_command(Command(1, self.step, kind, size, complete, scale), self.now)

    def run(self, seconds: float = 20.0) -> Report:
        """Live until the action ends, `seconds` at most."""
        for _ in range(round(seconds / TICK_S)):
            if not self.executor.running:
                break
            self.live()
        return self.report

    @property
    def report(self) -> Report:
        return self.executor.report(self.now)

    @property
    def moves(self) -> bool:
        return self.executor.velocity != ZERO


@pytest.mark.parametrize(("kind", "goal"), [(FORWARD, 0.25), (LEFT, math.radians(15)), (RIGHT, -math.radians(15))])
def test_a_good_robot_does_what_it_is_asked(kind: int, goal: float) -> None:
    robot = Robot()
    robot.act(kind)
    assert robot.moves, "it starts at once, not at the next tick"
    report = robot.run()
    assert (report.outcome, report.kind, report.size, robot.moves) == (DONE, kind, SMALL, False)
    assert robot.x + robot.yaw == pytest.approx(goal, abs=0.03)
    assert report.progress == pytest.approx(abs(goal), abs=0.03)
    assert report.remaining == pytest.approx(abs(goal) - report.progress, abs=1e-6)
    assert robot.ended == [report]


@pytest.mark.parametrize("kind", [HOLD, STOP, NOT_HERE])
def test_a_newer_hold_or_end_ends_the_motion_at_once_with_what_odometry_measured(kind: int) -> None:
    robot = Robot()
    robot.act(FORWARD, LARGE)
    for _ in range(20):
        robot.live()
    covered = robot.x
    robot.act(kind, 0, scale=math.nan)
    assert not robot.moves
    cut, standing = robot.ended
    assert cut.outcome == SUPERSEDED
    assert (cut.progress, cut.remaining) == (pytest.approx(covered), pytest.approx(0.75 - covered))
    assert (standing.outcome, standing.progress, standing.remaining) == (DONE, 0.0, 0.0)
    robot.executor.on_command(Command(1, 1, FORWARD, LARGE), robot.now)
    robot.live()
    assert not robot.moves and robot.ended == [cut, standing], "an older step that is late is ignored"


def test_a_hold_names_what_keeps_the_bridge_from_being_ready_while_that_is_news() -> None:
    robot = Robot()
    robot.act(FORWARD, LARGE)
    robot.executor.on_cause("go2_bridge", "e-stop; reset with ~/reset", robot.now)
    robot.live()
    assert robot.moves and not robot.report.message, "heartbeats decide, not causes"
    for _ in range(15):
        robot.live(alive=("vlm_nav",))
    assert not robot.moves and robot.report.message == "standing: go2_bridge silent: e-stop; reset with ~/reset"
    for _ in range(round(CAUSE_S / TICK_S)):
        robot.live(alive=("vlm_nav",))
    assert robot.report.message == "standing: go2_bridge silent", "a dead process reports nothing any more"


def test_an_action_that_was_paused_is_measured_while_the_robot_rolls_out() -> None:
    robot = Robot()
    robot.act(FORWARD, LARGE)
    for _ in range(20):
        robot.live()
    for _ in range(15):
        robot.live(alive=("go2_bridge",))
    assert not robot.moves and robot.executor.held_for == "vlm_nav silent"
    assert robot.report.message == "standing: vlm_nav silent" and robot.report.outcome == RUNNING
    robot.x += 0.05
    robot.live(alive=("go2_bridge",))
    assert robot.report.progress == pytest.approx(robot.x), "what the robot rolled on while it was held"
    assert robot.report.remaining == pytest.approx(0.75 - robot.x)
    robot.live()
    assert robot.moves and not robot.report.message
    assert robot.run().outcome == DONE


FAULTS: dict[str, Callable[[Robot], OdometrySample]] = {
    "x is NaN": lambda robot: robot.sample(x=math.nan),
    "x is infinite": lambda robot: robot.sample(x=math.inf),
    "yaw is NaN": lambda robot: robot.sample(yaw=math.nan),
    "jump": lambda robot: robot.sample(x=3.0),
    "jump to the goal": lambda robot: robot.sample(x=0.23),
    "half turn": lambda robot: robot.sample(yaw=3.0),
    "stamp goes back": lambda robot: robot.sample(stamp=-5.0),
    "twist is NaN": lambda robot: replace(robot.sample(), twist=(0.0, math.nan, 0.0)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [FORWARD, LEFT])
def test_one_bad_sample_ends_the_action_at_once_without_progress(kind: int, fault: str) -> None:
    robot = Robot()
    robot.act(kind)
    for _ in range(4):
        robot.live()
    covered = robot.report.progress
    assert robot.moves and robot.report.outcome == RUNNING
    robot.now += TICK_S
    robot.executor.on_odometry(FAULTS[fault](robot))
    assert not robot.moves, "the robot stands before the next tick"
    assert robot.report.outcome == NO_ODOMETRY and robot.report.progress == covered
    assert robot.report.message.startswith("odometry") and "robot stands" in robot.report.message
    robot.act(kind)
    assert robot.report.outcome == NO_ODOMETRY, "no new action while the source is not sound"
    assert robot.report.remaining > 0.2
    for _ in range(40):
        robot.live()
        assert not robot.moves
    robot.act(kind)
    assert robot.moves and robot.report.outcome == RUNNING, "a source that is sound again is moved on"


def test_an_answer_that_goes_on_extends_the_motion_without_a_stop() -> None:
    robot = Robot()
    robot.act(FORWARD, SMALL, complete=False)
    for _ in range(10):
        robot.live()
    robot.act(FORWARD, LARGE, again=True, complete=False)
    assert robot.executor.velocity.vx == CONFIG.forward_speed
    robot.act(FORWARD, LARGE, again=True)
    for _ in range(10):
        robot.live()
        assert robot.executor.velocity.vx == CONFIG.forward_speed
    report = robot.run()
    assert (report.outcome, report.size, report.progress) == (DONE, LARGE, pytest.approx(0.75, abs=0.03))
    assert robot.ended == [report]


def test_an_answer_that_goes_on_late_adds_the_part_that_remains() -> None:
    robot = Robot()
    robot.act(FORWARD, SMALL, complete=False)
    assert robot.run().outcome == DONE and robot.x == pytest.approx(0.25, abs=0.03)
    for _ in range(100):
        robot.live()
    robot.act(FORWARD, MEDIUM, again=True)
    assert robot.moves and robot.report.remaining == pytest.approx(0.25, abs=0.03)
    assert robot.run().outcome == DONE and robot.x == pytest.approx(0.5, abs=0.03)
    assert [report.outcome for report in robot.ended] == [DONE, DONE]


@pytest.mark.parametrize("running", [True, False])
def test_a_repeat_changes_nothing(running: bool) -> None:
    robot = Robot()
    robot.act(LEFT, MEDIUM, complete=False)
    robot.live()
    if not running:
        robot.run()
    before, velocity, ended = robot.report, robot.executor.velocity, list(robot.ended)
    robot.act(LEFT, MEDIUM, again=True, complete=False)
    robot.act(LEFT, MEDIUM, again=True)
    robot.act(LEFT, LARGE, again=True)
    assert (robot.report, robot.executor.velocity, robot.ended) == (before, velocity, ended), "complete is complete"


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("other", [HOLD, LEFT, 9])
def test_another_kind_in_the_same_step_is_refused(other: int, running: bool) -> None:
    robot = Robot()
    robot.act(FORWARD, complete=False)
    robot.live()
    if not running:
        robot.run()
    covered = robot.report.progress
    robot.act(other, again=True)
    assert not robot.moves
    assert (robot.report.outcome, robot.report.progress, robot.report.kind) == (BLOCKED, covered, FORWARD)
    assert robot.report.message == f"action refused: kind 1 cannot become {other} in one step"
    robot.act(FORWARD, LARGE, again=True)
    robot.live()
    assert not robot.moves and robot.report.outcome == BLOCKED, "nothing resumes it"


@pytest.mark.parametrize("scale", [0.09, 1.01, math.nan])
def test_a_share_of_the_speeds_outside_its_limits_is_refused(scale: float) -> None:
    robot = Robot()
    robot.act(FORWARD, complete=False)
    robot.act(FORWARD, MEDIUM, again=True, scale=scale)
    assert not robot.moves and robot.report.outcome == BLOCKED
    assert robot.report.message == f"action refused: speed_scale {scale:g} is not within 0.1 to 1"


@pytest.mark.parametrize("lost", ["jump", "silence", "moved"])
def test_a_robot_whose_place_was_lost_while_it_stood_does_not_go_on(lost: str) -> None:
    robot = Robot()
    robot.act(FORWARD, complete=False)
    covered = robot.run().progress
    if lost == "jump":
        robot.live(sample=robot.sample(x=math.nan))
        for _ in range(40):
            robot.live()
    elif lost == "silence":
        for _ in range(11):
            robot.live(odometry=False)
    else:
        for _ in range(50):
            robot.x += 0.01
            robot.live()
    robot.act(FORWARD, LARGE, again=True)
    assert not robot.moves
    assert (robot.report.outcome, robot.report.progress) == (NO_ODOMETRY, covered)


def test_an_older_goal_that_is_late_is_ignored_and_a_clock_that_was_set_back_is_not() -> None:
    robot = Robot()

    def send(goal: int, step: int, kind: int = LEFT) -> bool:
        robot.executor.on_command(Command(goal, step, kind, SMALL if kind else 0), robot.now)
        return robot.report.goal == goal and robot.report.step == step

    assert send(50, 3) and send(60, 0, HOLD)
    assert not send(50, 4) and not send(50, 3, FORWARD) and not robot.moves
    assert send(40, 0) and robot.moves, "vlm_nav began again with another clock"
    for goal in range(100, 100 + LEFT_GOALS - 2):
        assert send(goal, 0)
        assert not send(60, 1)


@pytest.mark.parametrize(("seconds", "goes_on"), [(1.5, True), (2.5, False)])
def test_an_action_outlives_no_node_that_decided_it(seconds: float, goes_on: bool) -> None:
    """vlm_nav that died and is back knows of no goal: its heartbeat alone must not move the robot."""
    robot = Robot()
    robot.act(FORWARD, LARGE)
    for _ in range(10):
        robot.live()
    for _ in range(round(seconds / TICK_S)):
        robot.live(("go2_bridge",))
    robot.live()
    assert robot.moves == goes_on == robot.executor.running
    assert goes_on or robot.report.message == "vlm_nav was silent for 2 s: the action is over"
    assert goes_on or robot.report.progress > 0.0
    robot.act(LEFT)
    assert robot.moves


class Late(Robot):
    """A robot that speeds up as the bridge lets it, whose odometry arrives `lag` s late, and in bursts every `gap` s.

    reaction: how late it obeys, s. drift: its odometry creeps sideways, m/s. wall: no further than this, m.
    """

    def __init__(
        self,
        lag: float = 0.0,
        gap: float = 0.0,
        reaction: float = 0.0,
        shown: float = 1.0,
        drift: float = 0.0,
        wall: float = math.inf,
    ) -> None:
        self.lag, self.gap, self.drift, self.wall, self.side = lag, gap, drift, wall, 0.0
        self._slew = SlewLimiter(Limits())
        self._sent = deque([ZERO] * round(reaction / TICK_S))
        self._waiting: deque[OdometrySample] = deque()
        self._next = 0.0
        super().__init__(shown)
        self.pause(5.0)

    def pause(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.live()

    def live(self, alive: tuple[str, ...] = NAMES, sample: OdometrySample | None = None, odometry: bool = True) -> None:
        self._sent.append(self.executor.velocity)
        wanted = self._sent.popleft()
        if wanted == ZERO:
            self._slew.reset()
        velocity = self._slew.step(wanted, TICK_S)
        self.now = round(self.now + TICK_S, 6)
        self.yaw += velocity.wz * TICK_S
        self.x = min(self.x + velocity.vx * math.cos(self.yaw) * TICK_S, max(self.wall, self.x))
        self.side += (velocity.vx * math.sin(self.yaw) + self.drift) * TICK_S
        for name in alive:
            self.executor.on_heartbeat(name, self.now)
        if odometry:
            made = sample or self.sample()
            self._waiting.append(replace(made, position=(made.position[0], self.shown * self.side, 0.3)))
            if self.now >= self._next - 1e-9:
                self._next = self.now + self.gap
                while self._waiting and self._waiting[0].arrived + self.lag <= self.now + 1e-9:
                    self.executor.on_odometry(replace(self._waiting.popleft(), arrived=self.now))
        self.executor.tick(self.now)

    def carry_out(self, kind: int, size: int) -> tuple[Report, float]:
        """Carry out an action, and wait until all has come; return its end, and what the robot moved, m or rad."""
        x, side, yaw = self.x, self.side, self.yaw
        self.act(kind, size)
        report = self.run(30.0)
        self.pause(self.lag + 1.0)
        return report, math.hypot(self.x - x, self.side - side) if kind == FORWARD else abs(self.yaw - yaw)


def test_a_hand_that_moves_a_blocked_robot_is_not_learned_as_late_odometry() -> None:
    robot = Late()
    robot.carry_out(FORWARD, LARGE)
    assert robot.executor.response.known
    robot.wall = robot.x
    report, _ = robot.carry_out(FORWARD, LARGE)
    assert report.outcome == BLOCKED
    robot.pause(1.0)
    for _ in range(25):
        robot.x += 0.002
        robot.live()
    assert robot.executor.response.lag < 0.1 and not robot.executor.problem(robot.now)


@pytest.mark.parametrize(
    ("lag", "gap", "reaction"),
    [(0.0, 0.0, 0.0), (0.0, 0.22, 0.0), (0.0, 0.0, 0.4), (0.24, 0.0, 0.0), (1.0, 0.22, 0.0), (0.5, 0.0, 0.5)],
)
def test_odometry_in_bursts_and_late_is_driven_on_and_what_is_reported_was_walked(
    lag: float, gap: float, reaction: float
) -> None:
    """Lag of 1 s: it walked 0.49 m, reported 0.09 m and was BLOCKED. Bursts: every action ended as NO_ODOMETRY."""
    robot = Late(lag, gap, reaction)
    turns = (LEFT, SMALL, math.radians(15)), (RIGHT, LARGE, math.radians(45))
    for kind, size, goal in ((FORWARD, SMALL, 0.25), *turns, (FORWARD, LARGE, 0.75)):
        report, moved = robot.carry_out(kind, size)
        assert (report.outcome, report.message) == (DONE, "")
        assert report.progress == pytest.approx(moved, abs=0.011)
        assert moved == pytest.approx(goal, abs=0.06 if kind == FORWARD else 0.08)
        assert report.elapsed < 8.0
    measured = robot.executor.response.lag
    assert lag + reaction - REACTION_S - 1e-9 <= measured <= lag + reaction, "a reaction of the robot is no lag"
    assert (f"is {measured:.2g} s late" in robot.executor.odometry_doubt) == (measured >= 0.1)
    assert ("with gaps of 0.2" in robot.executor.odometry_doubt) == bool(gap)


def test_a_lag_that_is_too_much_to_drive_with_is_said_and_measured_again_later() -> None:
    robot = Late(2.0)
    report, moved = robot.carry_out(FORWARD, SMALL)
    assert report.outcome == NO_ODOMETRY and moved <= 0.25
    assert f"s late, more than {LAG_LIMIT_S:g} s: too late to move on" in report.message
    report, moved = robot.carry_out(FORWARD, SMALL)
    assert (report.outcome, moved) == (NO_ODOMETRY, 0.0) and "too late to move on" in report.message
    robot.pause(FORGET_S)
    robot.lag = 0.0
    robot.pause(0.5)
    report, moved = robot.carry_out(FORWARD, SMALL)
    assert report.outcome == DONE and report.progress == pytest.approx(moved, abs=0.011)


@pytest.mark.parametrize("lag", [0.0, 1.0])
def test_a_blocked_robot_is_found_also_on_late_odometry_and_pushes_no_longer_for_it(lag: float) -> None:
    robot = Late(lag, wall=0.6)
    assert robot.carry_out(FORWARD, MEDIUM)[0].outcome == DONE
    pushed = 0.0
    robot.act(FORWARD, LARGE)
    while robot.executor.running:
        pushed += robot.executor.velocity.vx * TICK_S
        robot.live()
    report = robot.report
    assert report.outcome == BLOCKED and "something blocks the robot" in report.message
    assert report.progress == pytest.approx(robot.x - 0.5, abs=0.06)
    assert pushed <= CONFIG.forward_speed * CONFIG.blocked_after_s + 0.15


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(("wall", "lag"), [(0.0, 0.0), (0.0, 1.0), (0.1, 1.0)])
def test_a_robot_that_is_blocked_in_its_first_motion_stands_while_late_odometry_may_come(
    wall: float, lag: float, size: int
) -> None:
    robot = Late(lag, wall=wall)
    pushed = 0.0
    robot.act(FORWARD, size)
    while robot.executor.running:
        pushed += robot.executor.velocity.vx * TICK_S
        robot.live()
    assert robot.report.outcome == BLOCKED
    assert ("or more than 3.5 s late" in robot.report.message) == (not wall)
    at_once = CONFIG.forward_speed * (CONFIG.blocked_after_s + 2 * TICK_S)
    assert pushed <= (at_once if not wall else 1.5 * at_once), "at full speed until the lag is known"


def test_the_next_motion_on_late_odometry_begins_where_the_one_before_ended() -> None:
    robot = Late(1.0)
    robot.carry_out(FORWARD, SMALL)
    x = robot.x
    robot.act(FORWARD, LARGE)
    for _ in range(60):
        robot.live()
    robot.act(FORWARD, SMALL)
    assert not robot.moves, "odometry does not show yet where it is"
    begun = robot.x
    report = robot.run()
    assert report.outcome == DONE and begun - x > 0.1
    assert robot.x - begun == pytest.approx(0.25, abs=0.05)
    assert report.progress == pytest.approx(robot.x - begun, abs=0.011)


@pytest.mark.parametrize("gap", [0.0, 0.22])
@pytest.mark.parametrize("silent", ["odom", *NAMES])
def test_bursts_let_odometry_be_silent_for_longer_and_nobody_else(silent: str, gap: float) -> None:
    robot = Late(gap=gap)
    robot.act(FORWARD, LARGE)
    robot.pause(0.66)
    assert robot.moves
    alive = tuple(name for name in NAMES if name != silent)
    since, x = robot.now, robot.x
    while robot.moves:
        robot.live(alive, odometry=silent != "odom")
    assert robot.report.outcome == (NO_ODOMETRY if silent == "odom" else RUNNING)
    limit = robot.executor.rhythm.limit if silent == "odom" else TIMEOUT_S
    assert robot.now - since <= limit + TICK_S + 1e-6 and limit <= LONGEST_S
    assert robot.x - x <= CONFIG.forward_speed * (TIMEOUT_S + TICK_S), "a longer limit has a lower speed"
    assert (robot.executor.rhythm.limit > TIMEOUT_S) == bool(gap)


def test_odometry_of_three_times_the_scale_is_named_with_the_first_action_and_ends_the_second() -> None:
    """It passed for ten actions."""
    robot = Late(shown=3.0)
    report, moved = robot.carry_out(FORWARD, MEDIUM)
    assert report.outcome == DONE and moved < 0.2
    assert "odometry shows 0.48 m of 0.21 m commanded: its scale is wrong" in report.message
    for kind, size in ((LEFT, SMALL), (FORWARD, SMALL)):
        report, _ = robot.carry_out(kind, size)
        assert report.outcome == NO_ODOMETRY and "its scale is wrong" in report.message
    robot.shown = 1.0
    robot.live(sample=replace(robot.sample(), position=(math.nan, 0.0, 0.0)))
    robot.pause(1.0)
    assert robot.carry_out(FORWARD, MEDIUM)[0] == replace(robot.report, outcome=DONE, message="")


@pytest.mark.parametrize("kind", [FORWARD, LEFT])
def test_odometry_that_creeps_sideways_ends_the_action_at_once(kind: int) -> None:
    """A creep of 0.9 m/s passed for 4 s."""
    robot = Late(drift=0.9)
    robot.act(kind, LARGE)
    report = robot.run(0.3)
    assert report.outcome == NO_ODOMETRY
    assert "that nobody commanded: it is wrong, or something pushes the robot" in report.message


TIGHT = MotionConfig(metres_a_minute=2.0, degrees_a_minute=180.0)
LIE = st.tuples(st.sampled_from([FORWARD, LEFT, RIGHT]), st.integers(1, 3), st.booleans(), st.integers(5, 30))


@settings(max_examples=8, deadline=None)
@given(st.lists(LIE, min_size=1, max_size=8), st.sampled_from([1.0, 0.3]))
def test_no_answers_move_the_robot_further_in_any_minute_than_its_budget(
    lies: list[tuple[int, int, bool, int]], shown: float
) -> None:
    """Whatever comes, in whole actions and in parts that grow; also where odometry shows less than the way."""
    robot = Robot(shown, TIGHT)
    robot.tick_s = 0.1
    moved: deque[tuple[float, float]] = deque(maxlen=round(60.0 / robot.tick_s))
    for kind, size, again, ticks in itertools.islice(itertools.cycle(lies), 60):
        robot.act(robot.report.kind if again and robot.step else kind, size, again=again, complete=False)
        for _ in range(ticks):
            x, yaw = robot.x, robot.yaw
            robot.live()
            moved.append((abs(robot.x - x), abs(robot.yaw - yaw)))
        assert sum(metres for metres, _ in moved) <= TIGHT.metres_a_minute + 1e-6
        assert math.degrees(sum(radians for _, radians in moved)) <= TIGHT.degrees_a_minute + 1e-6


@pytest.mark.parametrize("shown", [1.0, 1.5])
def test_an_action_waits_until_all_of_it_fits_into_the_budget_and_is_then_carried_out_in_one_go(shown: float) -> None:
    """What odometry shows beyond what was commanded counts, too."""
    robot = Robot(shown, TIGHT)
    for _ in range(2):
        robot.act(FORWARD, LARGE)
        assert robot.run().outcome == DONE
    robot.act(FORWARD, LARGE)
    since = robot.now
    assert not robot.moves and robot.executor.held_for == robot.report.message.removeprefix("standing: ")
    assert "the budget of 2 m and 180 degrees a minute is used up (metres_a_minute, " in robot.report.message
    while not robot.moves and robot.now - since < 70.0:
        robot.live()
    assert 45.0 < robot.now - since < 61.0
    report = robot.run()
    assert report.outcome == DONE and report.elapsed - (robot.now - since) < 0.1
    assert robot.ended[-1].progress == pytest.approx(0.75, abs=0.03)


NUMBERS = st.integers(0, 6)
SCALES = st.one_of(st.sampled_from([1.0, 0.5, 0.1]), st.floats(width=32))


class AnyOrder(RuleBasedStateMachine):
    """Messages of every kind in any order. What the invariants need is kept beside the executor, not read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.robot = Robot()
        self.newest: tuple[int, int] | None = None
        self.left: set[int] = set()
        self.kind = HOLD
        self.closed = True
        """Whether the newest action was refused, replaced or ended for good."""
        self.fed = dict.fromkeys((*NAMES, "odom"), self.robot.now)
        self.sound_since, self.moved = -math.inf, 0.0
        self.shown = 0.0, 0.0
        """By the newest sound odometry, from whose place the next action begins."""

    @rule(command=st.builds(Command, st.integers(0, 2), st.integers(0, 2), NUMBERS, NUMBERS, st.booleans(), SCALES))
    def any_command(self, command: Command) -> None:
        self._send(command)

    @rule(kind=st.sampled_from([FORWARD, LEFT, RIGHT]), size=st.integers(1, 3), complete=st.booleans())
    def next_step(self, kind: int, size: int, complete: bool) -> None:
        goal, step = self.newest or (0, 0)
        self._send(Command(goal, step + 1, kind, size, complete))

    @precondition(lambda self: self.newest is not None)
    @rule(kind=st.one_of(st.none(), NUMBERS), size=st.integers(1, 4), complete=st.booleans())
    def same_step(self, kind: int | None, size: int, complete: bool) -> None:
        assert self.newest is not None
        self._send(Command(*self.newest, self.kind if kind is None else kind, size, complete))

    def _send(self, command: Command) -> None:
        robot = self.robot
        readable = command.kind in (1, 2, 3) and command.size in (1, 2, 3) and 0.1 <= command.speed_scale <= 1.0
        goal = self.newest[0] if self.newest else command.goal
        if command.goal not in self.left and (
            self.newest is None or command.goal != goal or command.step > self.newest[1]
        ):
            if command.goal != goal:
                self.left.add(goal)
            self.newest, self.kind = (command.goal, command.step), command.kind
            self.closed, self.moved = not readable, 0.0
        elif (command.goal, command.step) == self.newest:
            self.closed = self.closed or command.kind != self.kind
        robot.executor.on_command(command, robot.now)

    @rule(ticks=st.integers(1, 40))
    def all_is_well(self, ticks: int) -> None:
        for _ in range(ticks):
            self._tick(set(self.fed))

    @rule(ticks=st.integers(1, 15), alive=st.sets(st.sampled_from([*NAMES, "odom"])))
    def some_are_silent(self, ticks: int, alive: set[str]) -> None:
        for _ in range(ticks):
            self._tick(alive)

    def _tick(self, alive: set[str]) -> None:
        robot = self.robot
        robot.live(tuple(alive - {"odom"}), odometry="odom" in alive)
        self.fed |= dict.fromkeys(alive, robot.now)
        if "odom" in alive:
            self.moved += abs(robot.x - self.shown[0]) + abs(robot.yaw - self.shown[1])
            self.shown = robot.x, robot.yaw
        self.check_velocity()

    @rule(fault=st.sampled_from(sorted(FAULTS)))
    def bad_odometry(self, fault: str) -> None:
        robot = self.robot
        self._tick(set(self.fed))
        robot.now += TICK_S
        robot.executor.on_odometry(FAULTS[fault](robot))
        self.closed, self.sound_since = True, robot.now

    @rule()
    def halt(self) -> None:
        self.robot.executor.halt("deactivated", self.robot.now)
        self.closed = True

    @invariant()
    def check_velocity(self) -> None:
        robot, velocity = self.robot, self.robot.executor.velocity
        if velocity == ZERO:
            return
        assert not self.closed and robot.executor.running
        assert (robot.report.goal, robot.report.step) == self.newest
        assert (velocity.vx > 0.0) == (self.kind == FORWARD) and velocity.vy == 0.0
        assert self.kind == FORWARD or (velocity.wz > 0.0) == (self.kind == LEFT)
        assert abs(velocity.vx) <= CONFIG.forward_speed and abs(velocity.wz) <= CONFIG.turn_speed
        limits = dict.fromkeys(NAMES, TIMEOUT_S) | {"odom": robot.executor.rhythm.limit}
        assert all(robot.now - at <= limits[name] + 1e-9 for name, at in self.fed.items())
        assert velocity.vx * limits["odom"] <= CONFIG.forward_speed * TIMEOUT_S + 1e-9, "no further on silence"
        assert robot.now - self.sound_since >= 0.4

    @invariant()
    def check_progress(self) -> None:
        report = self.robot.report
        assert report.progress <= self.moved + 1e-6
        assert report.remaining >= 0.0 and report.elapsed >= 0.0


AnyOrder.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase
