"""Two things that a robot must show before the bridge believes them: that it stands ready, and that it stands still.

No ROS; time is given (steady clock, seconds).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from spec_vlm_nav.robot import Answer, Confirmed, Posture, Robot

STAND_RETRY_S = 1.0
STATE_WAIT_S = 1.5
"""How long a robot with a state topic gets to show that it stands already, before it is made to stand up."""
SHOW_S = 4.0
"""How long a robot that confirmed everything gets until its state shows that it stands, before it is asked again."""
STILL = 0.05
"""Less than this (m/s, rad/s) is a robot that stands: its own estimate of a velocity is noisy."""

R = TypeVar("R")


class StandUp(Generic[R]):
    """Has every request of `stand_up` and `take_control` confirmed in turn, with time to settle after the first.

    Of a robot whose state shows that it stands, from the beginning, only the last request of `stand_up` is asked.
    Where the state is known it must show at the end that the robot stands.
    """

    def __init__(self, robot: Robot[R], settle_s: float, next_identity: Callable[[], int], begun: float) -> None:
        self.done = False
        """Whether the robot may be moved."""
        self._robot, self._settle_s, self._next_identity = robot, settle_s, next_identity
        self._state_by = begun + (STATE_WAIT_S if robot.states else 0.0)
        self._believed, self._refused = True, False
        self._began = False
        self._left: list[Confirmed[R]] = []
        self._settle_after: Confirmed[R] | None = None
        self._not_before = self._confirmed_at = -math.inf
        self._begin(-math.inf)

    def due(self, posture: Posture, now: float) -> R | None:
        """Return the request that must be sent now, if any."""
        if self._refused:
            self._refused = False
            self._begin(now + STAND_RETRY_S)
        if not self._began:
            if posture is Posture.STANDS and self._believed:
                self._left = self._left[max(len(self._robot.stand_up) - 1, 0) :]
            elif posture is Posture.UNKNOWN and now < self._state_by:
                return None
            else:
                self._settle_after = self._left[0] if self._left else None
            self._began = True
        while self._left and self._left[0].done:
            if self._left.pop(0) is self._settle_after:
                self._not_before = now + self._settle_s
        if now < self._not_before:
            return None
        if self._left:
            return self._left[0].due(now)
        self._confirmed_at = min(self._confirmed_at, now)
        self.done = posture in (Posture.STANDS, Posture.UNKNOWN)
        if not self.done and now - self._confirmed_at >= SHOW_S:
            self._begin(now)
        return None

    def answered(self, answer: Answer) -> None:
        """Take an answer. A robot that refuses as it does not stand is made to stand up, whatever its state shows."""
        if self._left and self._left[0].asked(answer):
            if answer.unready:
                self._believed, self._refused = False, True
            else:
                self._left[0].answered(answer)

    def _begin(self, not_before: float) -> None:
        makes = (*self._robot.stand_up, *self._robot.take_control)
        self._left = [Confirmed(make, self._next_identity, STAND_RETRY_S) for make in makes]
        self._settle_after, self._began = None, False
        self._not_before, self._confirmed_at = not_before, math.inf


class Stillness:
    """What each source last showed of the robot's speed, m/s or rad/s, whichever is more."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[float, float]] = {}

    def note(self, source: str, speed: float, now: float) -> None:
        """Take the speed that a source shows; one that is not finite shows no robot that stands."""
        self._shown[source] = (speed if math.isfinite(speed) else math.inf, now)

    @property
    def moving(self) -> str:
        """Which source shows a robot that moves, in a sentence; empty for none."""
        moving = [f"{source} shows {speed:.2f}" for source, (speed, _) in self._shown.items() if speed > STILL]
        return moving[0] if moving else ""

    def since(self, moment: float) -> bool:
        """Return whether every source that ever showed something has shown a standing robot after `moment`."""
        return all(speed <= STILL and at > moment for speed, at in self._shown.values())
