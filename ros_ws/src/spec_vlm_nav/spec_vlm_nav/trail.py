"""Where the robot went for its goal, and what was decided on the way. No ROS."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from spec_vlm_nav.motion import PlanarPose
from speculation.language.prompts import NavigationAction

SPACING_M = 0.05
MOST_PLACES = 2000
MOST_DECISIONS = 200


@dataclass(frozen=True)
class PlacedDecision:
    """A decision, and where it was taken."""

    step: int
    place: PlanarPose
    action: NavigationAction | None
    """None: HOLD."""
    source: int
    """Who decided, as NavigationAction.msg numbers it."""


class Trail:
    """Follows one goal; a new goal begins a new trail."""

    def __init__(self) -> None:
        self.place: PlanarPose | None = None
        """Where the robot is; None while odometry cannot be trusted."""
        self.path: list[PlanarPose] = []
        self.decisions: deque[PlacedDecision] = deque(maxlen=MOST_DECISIONS)
        self._goal: int | None = None
        self._spacing = SPACING_M

    def moved(self, place: PlanarPose | None) -> bool:
        """Take the newest place, None where odometry has none; return whether the path grew.

        A path that gets too long for a message is thinned to half its places, and grows half as fast from then on.
        """
        self.place = place
        if place is None:
            return False
        if self.path and math.dist((place.x, place.y), (self.path[-1].x, self.path[-1].y)) < self._spacing:
            return False
        self.path.append(place)
        if len(self.path) > MOST_PLACES:
            self.path, self._spacing = self.path[::2], 2.0 * self._spacing
        return True

    def decided(self, goal: int, step: int, action: NavigationAction | None, source: int) -> None:
        """Take a decision where the robot is now, None for HOLD; the same step again replaces it where it was."""
        if goal != self._goal:
            self._goal, self._spacing = goal, SPACING_M
            self.path = [self.place] if self.place is not None else []
            self.decisions.clear()
        last = self.decisions[-1] if self.decisions else None
        if last is not None and last.step == step:
            self.decisions[-1] = PlacedDecision(step, last.place, action, source)
        elif self.place is not None:
            self.decisions.append(PlacedDecision(step, self.place, action, source))
