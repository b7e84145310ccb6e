"""Commands in, velocity and reports out: one action at a time on odometry, standing while anybody it needs is silent.

No ROS: `nodes/action_executor.py` gives it messages and time (steady clock, seconds).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spec_vlm_nav.messages import OUTCOME_CODE, to_action
from spec_vlm_nav.motion import COMMAND_HOLD_S, LAG_LIMIT_S, Motion, MotionConfig, Outcome, PlanarPose, Response
from spec_vlm_nav.odometry import LEAST_HZ, OdometryCheck, OdometrySample, Rhythm
from spec_vlm_nav.safety import ZERO, MotionBudget, Velocity, Watchdogs
from speculation.language.prompts import NavigationAction

IDLE, SUPERSEDED = 0, 5
"""ActionStatus.outcome, beside those of `OUTCOME_CODE`."""
RUNNING, DONE, BLOCKED, NO_ODOMETRY = (
    OUTCOME_CODE[each] for each in (Outcome.RUNNING, Outcome.DONE, Outcome.BLOCKED, Outcome.NO_ODOMETRY)
)
LEAST_SCALE = 0.1
RATE_HZ = 50.0
LATE_S = 0.001
"""A tick comes so much after a watchdog's timeout, not so much before it."""
NAMED_LAG_S = 0.1
"""A lag of odometry that is worth a word."""
ODOM, DECIDER = "odom", "vlm_nav"
GONE_S = 2.0
"""An action whose decider was silent for so long is over: a node that was started again does not know of it."""
CAUSE_S = 2.5
"""How long a cause holds; nodes report it once a second on `/diagnostics`."""
LEFT_GOALS = 16
"""How many goals are remembered after a newer one came, so that a late message of theirs moves nothing."""


@dataclass(frozen=True)
class Command:
    """One NavigationAction as it came: any numbers."""

    goal: int
    step: int
    kind: int
    size: int
    complete: bool = True
    speed_scale: float = 1.0


@dataclass(frozen=True)
class Report:
    """ActionStatus without its header: fields and numbers are the message's."""

    goal: int = 0
    step: int = 0
    outcome: int = IDLE
    kind: int = 0
    size: int = 0
    progress: float = 0.0
    remaining: float = 0.0
    elapsed: float = 0.0
    message: str = ""


class Executor:
    """Runs one action at a time; a newer one, also HOLD, STOP and NOT_HERE, takes over at once.

    names: whose heartbeats it depends on besides odometry; silence longer than `timeout` seconds holds the robot.
    Odometry has the limit of its `Rhythm`; a longer one makes the robot slower, so that it goes no further on silence.
    An action waits until all of it fits into the minute's budget of `config`, see `MotionBudget`.
    ended: called with the report of each action as it ends. motion: what moves the robot. Not thread-safe.
    """

    def __init__(
        self,
        config: MotionConfig,
        names: Iterable[str],
        timeout: float,
        ended: Callable[[Report], None],
        motion: Callable[..., Motion] = Motion,
    ) -> None:
        self.velocity = ZERO
        """What to command until the next call; whoever publishes it calls `tick` before."""
        self._config, self._ended, self._make_motion = config, ended, motion
        self._watchdogs = Watchdogs([ODOM, *names], timeout)
        self._causes: dict[str, tuple[str, float]] = {}
        self.rhythm, self.response = Rhythm(timeout), Response()
        """How odometry comes, and how late it is."""
        self._timeout = timeout
        self._odometry = OdometryCheck()
        self._pose: PlanarPose | None = None
        self._seen = 0.0
        """When that pose arrived."""
        self._newest: Command | None = None
        self._left: deque[int] = deque(maxlen=LEFT_GOALS)
        self._motion: Motion | None = None
        self._outcome, self._message, self._held_for = IDLE, "", ""
        self._asked = self._began = self._ended_at = 0.0
        self._place_lost = False
        self._budget = MotionBudget(config.metres_a_minute, math.radians(config.degrees_a_minute))
        self._commanded_at = self._paid = 0.0
        """Since when the velocity is commanded; metres or radians of the newest motion that the budget has paid."""
        self._waits = False
        """Whether the running action waits until the budget has room for the rest of it."""
        self._decider_at = 0.0
        """When the decider of the running action was last not silent."""

    @property
    def running(self) -> bool:
        """Whether an action is under way, also one that is held."""
        return self._outcome == RUNNING

    @property
    def is_free(self) -> bool:
        """Whether nothing moves or has moved the robot since it was last told to stand, or since the start."""
        return not self.running and self._motion is None

    @property
    def held_for(self) -> str:
        """What holds the running action, e.g. "vlm_nav, go2_bridge silent"; empty if nothing does."""
        return self._held_for if self.running else ""

    @property
    def odometry_problem(self) -> str:
        """Why odometry cannot be moved on, in a sentence; empty if it can. Silence is no problem of this kind."""
        return self._odometry.problem

    @property
    def odometry_doubt(self) -> str:
        """Why odometry makes the robot slower, in a sentence; empty if it does not."""
        gaps = f"comes with gaps of {self.rhythm.gap:.2g} s" if self.rhythm.limit > self._timeout else ""
        late = f"is {self.response.lag:.2g} s late" if self.response.lag >= NAMED_LAG_S else ""
        words = " and ".join(filter(None, (gaps, late)))
        return f"odometry {words}: the robot is slower" if words else ""

    def problem(self, now: float) -> str:
        """Return why odometry cannot be moved on now, in a sentence; empty if it can."""
        problem = self._odometry.problem or self.rhythm.problem or self.response.problem(now)
        if problem or ODOM not in self.silent(now):
            return problem
        return f"odometry is silent: at least {LEAST_HZ} messages a second are needed"

    def silent(self, now: float) -> tuple[str, ...]:
        """Return who has been silent for too long; `odom` is one of them."""
        return self._watchdogs.silent(now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next tick: a period of `RATE_HZ`, or less where somebody is due to be silent."""
        return min(1.0 / RATE_HZ, self._watchdogs.next_in(now) + LATE_S)

    def report(self, now: float) -> Report:
        """Return how the newest action stands; progress and what remains are what odometry measured."""
        command, motion = self._newest, self._motion
        if command is None:
            return Report(message=self._message)
        return Report(
            command.goal,
            command.step,
            self._outcome,
            command.kind,
            command.size,
            motion.progress if motion is not None else 0.0,
            motion.remaining if motion is not None else self._asked,
            (now if self.running else self._ended_at) - self._began,
            self._message,
        )

    def on_heartbeat(self, name: str, now: float) -> None:
        """Take a heartbeat of one of `names`."""
        self._watchdogs.feed(name, now)

    def on_cause(self, name: str, cause: str, now: float) -> None:
        """Take, in a sentence, why one of `names` is not ready and so sends no heartbeat; empty where it is."""
        self._causes[name] = (cause, now)

    def on_odometry(self, sample: OdometrySample) -> None:
        """Take odometry. One bad message ends the action: the robot's place is unknown."""
        self.rhythm.note(sample.arrived)
        self._watchdogs.allow(ODOM, self.rhythm.limit)
        self._pose, self._seen = self._odometry.take(sample), sample.arrived
        if self._pose is not None:
            self._watchdogs.feed(ODOM, sample.arrived)
            # What moves it later was a hand or a remote control, which must not be learned as late odometry.
            after = max(self.response.wait, LAG_LIMIT_S)
            if self._motion is not None and not self.running and sample.arrived - self._ended_at <= after:
                self._motion.watch(self._pose, sample.arrived)
            # Of messages that come in a burst only the last is fresh: the timer's tick takes that.
            if not self.rhythm.gap:
                self.tick(sample.arrived)
            return
        self._place_lost = True
        if self.running:
            self._finish(NO_ODOMETRY, f"{self._odometry.problem}: the robot stands", sample.arrived)

    def on_command(self, command: Command, now: float) -> None:
        """Take a command: start it, go on with the one under way, or ignore one that is repeated or late."""
        newest = self._newest
        if newest is not None and command.goal == newest.goal:
            if command.step == newest.step:
                self._go_on(command, newest, now)
            if command.step <= newest.step:
                return
        elif command.goal in self._left:
            return
        if self.running:
            self._finish(SUPERSEDED, "a newer action took over", now)
        if newest is not None and command.goal != newest.goal:
            self._left.append(newest.goal)
        self._newest, self._motion, self._asked = command, None, 0.0
        self._outcome, self._message, self._began, self._place_lost = RUNNING, "", now, False
        self._decider_at = now
        try:
            action = _readable(command)
        except ValueError as error:
            self._finish(BLOCKED, f"action refused: {error}", now)
            return
        if action is None:
            self._finish(DONE, "standing", now)
            return
        self._asked = abs(action.radians or action.metres)
        if self._pose is None or self.problem(now):
            self._finish(NO_ODOMETRY, f"{self.problem(now) or 'no odometry'}: the robot stands", now)
        else:
            scale = command.speed_scale
            self._motion = self._make_motion(action, self._pose, now, self._config, scale, self.response)
            self._waits, self._paid = True, 0.0
            self.tick(now)

    def tick(self, now: float) -> None:
        """Take one step of the running motion; stand while anybody it depends on is silent."""
        motion, pose = self._motion, self._pose
        if not self.running or motion is None or pose is None:
            self._command(ZERO, now)
            return
        self._command(self.velocity, now)
        silent = self.silent(now)
        if ODOM in silent:
            words = f"odometry went silent for {self.rhythm.limit:.2g} s: the robot stands"
            self._finish(NO_ODOMETRY, words, now)
            return
        if DECIDER not in silent:
            self._decider_at = now
        elif now - self._decider_at > GONE_S:
            self._finish(IDLE, f"{DECIDER} was silent for {GONE_S:g} s: the action is over", now)
            return
        self._waits = not self._has_budget(motion, now)
        self._held_for = f"{', '.join(silent)} silent" if silent else self._spent_words if self._waits else ""
        self._message = f"standing: {self._held_for}{self._why(silent, now)}" if self._held_for else ""
        step = motion.update(pose, now, bool(self._held_for), self._seen, self._timeout / self.rhythm.limit)
        more = step.progress - self._paid
        if more > 0.0:  # odometry shows more than was commanded
            self._pay(0.0 if motion.turning else more, more if motion.turning else 0.0, now)
        self._command(step.velocity, now)
        if step.outcome is not Outcome.RUNNING:
            self._finish(OUTCOME_CODE[step.outcome], step.message, now)

    def halt(self, why: str, now: float) -> None:
        """End what runs and stand until the next new action."""
        self._finish(IDLE, why, now)

    def _go_on(self, command: Command, newest: Command, now: float) -> None:
        """Take another message of the newest action: only one whose answer was still being written can change."""
        if self._outcome not in (RUNNING, DONE) or command == newest:
            return
        if command.kind != newest.kind:
            self._finish(BLOCKED, f"action refused: kind {newest.kind} cannot become {command.kind} in one step", now)
            return
        if self._motion is None or newest.complete:
            return
        try:
            action = _readable(command)
        except ValueError as error:
            self._finish(BLOCKED, f"action refused: {error}", now)
            return
        self._newest = command
        if action is None or (command.size, command.speed_scale) == (newest.size, newest.speed_scale):
            return
        lost = "odometry was wrong while the robot stood" if self._place_lost else self.problem(now)
        self._motion.extend(action, now, command.speed_scale)
        self._waits = True
        if lost:
            self._finish(NO_ODOMETRY, f"{lost}: the robot stands", now)
        else:
            self._outcome, self._decider_at = RUNNING, now
            self.tick(now)

    def _command(self, velocity: Velocity, now: float) -> None:
        """Command a velocity from now on, and pay for the one before: no command counts longer than it holds."""
        seconds = min(now - self._commanded_at, COMMAND_HOLD_S)
        if self.velocity != ZERO and seconds > 0.0:
            self._pay(math.hypot(self.velocity.vx, self.velocity.vy) * seconds, abs(self.velocity.wz) * seconds, now)
        self.velocity, self._commanded_at = velocity, now

    def _pay(self, metres: float, radians: float, now: float) -> None:
        self._budget.spend(metres, radians, now)
        self._paid += radians if self._motion is not None and self._motion.turning else metres

    def _has_budget(self, motion: Motion, now: float) -> bool:
        """Return whether the motion may go on until the next tick, or all of the rest where it waited for that."""
        config, rest = self._config, motion.remaining if self._waits else 0.0
        metres, radians = config.forward_speed * COMMAND_HOLD_S, config.turn_speed * COMMAND_HOLD_S
        return self._budget.fits(
            metres + (0.0 if motion.turning else rest), radians + (rest if motion.turning else 0.0), now
        )

    @property
    def _spent_words(self) -> str:
        config = self._config
        return (
            f"the budget of {config.metres_a_minute:g} m and {config.degrees_a_minute:g} degrees a minute is used up "
            "(metres_a_minute, degrees_a_minute)"
        )

    def _why(self, silent: Iterable[str], now: float) -> str:
        """Return what nodes that are silent, and not dead, reported of themselves, as the end of a sentence."""
        found = (self._causes.get(name, ("", now)) for name in silent)
        return "".join(f": {cause}" for cause, at in found if cause and now - at <= CAUSE_S)

    def _finish(self, outcome: int, message: str, now: float) -> None:
        self._command(ZERO, now)
        self._outcome, self._message, self._ended_at = outcome, message, now
        self._ended(self.report(now))


def _readable(command: Command) -> NavigationAction | None:
    """Return the motion that a command asks for, None for standing. Raises ValueError for what is neither."""
    action = to_action(command.kind, command.size)
    if action is None or not action.kind.moves:
        return None
    if not LEAST_SCALE <= command.speed_scale <= 1.0:
        raise ValueError(f"speed_scale {command.speed_scale:g} is not within {LEAST_SCALE:g} to 1")
    return action
