"""Where the robot went for its goal and what was decided on the way, as a path and marks on a map. No ROS."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from spec_vlm_nav.annotate import AMBER, END_COLOURS, GREEN, SOURCE_COLOURS, WHITE, Colour
from spec_vlm_nav.motion import PlanarPose
from speculation.language.prompts import NavigationAction

SPACING_M = 0.05
MOST_PLACES = 2000
MOST_DECISIONS = 200
TURN_ARROW_M, TEXT_M, BALL_M = 0.3, 0.12, 0.15
LABEL_ABOVE_M = 0.6


@dataclass(frozen=True)
class Mark:
    """One thing on the map, in the frame of the odometry: an arrow, a ball, or words that face the viewer."""

    group: str
    """Decisions, action or hold; a viewer can switch each off."""
    kind: str
    """Arrow, ball or words."""
    x: float
    y: float
    z: float
    size: float
    """Length of an arrow, diameter of a ball, height of a letter; metres."""
    colour: Colour
    yaw: float = 0.0
    """Where an arrow points, radians."""
    opacity: float = 1.0
    words: str = ""


@dataclass(frozen=True)
class _Decision:
    step: int
    place: PlanarPose
    action: NavigationAction | None
    source: int


class Trail:
    """Follows one goal; a new goal begins a new trail."""

    def __init__(self) -> None:
        self.place: PlanarPose | None = None
        """Where the robot is; None while odometry cannot be trusted."""
        self.path: list[PlanarPose] = []
        self._goal: int | None = None
        self._spacing = SPACING_M
        self._decisions: deque[_Decision] = deque(maxlen=MOST_DECISIONS)

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
            self._decisions.clear()
        last = self._decisions[-1] if self._decisions else None
        if last is not None and last.step == step:
            self._decisions[-1] = _Decision(step, last.place, action, source)
        elif self.place is not None:
            self._decisions.append(_Decision(step, self.place, action, source))

    def marks(self, running_step: int | None = None, holding: str = "") -> list[Mark]:
        """Return all decisions, the one that is carried out now (`running_step`), and why the robot holds."""
        found = []
        for decision in self._decisions:
            runs = decision.step == running_step and not holding
            found += _shown(decision, "action" if runs else "decisions", 1.0 if runs else 0.5)
            if runs and decision.action is not None:
                found.append(self._label("action", decision.action.text, WHITE, decision.place))
        if holding and (self.place or self.path):
            place = self.place or self.path[-1]
            found.append(Mark("hold", "ball", place.x, place.y, 0.0, 2.0 * BALL_M, AMBER, opacity=0.6))
            found.append(self._label("hold", f"HOLD: {holding}", AMBER, place))
        return found

    def _label(self, group: str, words: str, colour: Colour, place: PlanarPose) -> Mark:
        at = self.place or place
        return Mark(group, "words", at.x, at.y, LABEL_ABOVE_M, TEXT_M, colour, words=words)


def _shown(decision: _Decision, group: str, opacity: float) -> list[Mark]:
    """Return the arrow of a motion, or the ball of a HOLD or of what ends a goal, at the place of its decision."""
    place, action = decision.place, decision.action
    if action is None or not action.kind.moves:
        colour = AMBER if action is None else END_COLOURS[action]
        return [Mark(group, "ball", place.x, place.y, 0.0, BALL_M, colour, opacity=opacity)]
    colour = SOURCE_COLOURS.get(decision.source, GREEN)
    yaw, length = place.yaw + action.radians, action.metres or TURN_ARROW_M
    return [Mark(group, "arrow", place.x, place.y, 0.02, length, colour, yaw, opacity)]
