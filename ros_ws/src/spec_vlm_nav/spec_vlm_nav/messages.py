"""Numbers of our ROS messages <-> the project's own types, as in `NavigationAction.msg`; knows no ROS."""

from __future__ import annotations

from spec_vlm_nav.motion import Outcome
from speculation.prompts import ActionKind, ActionSize, NavigationAction

HOLD = 0
"""NavigationAction.HOLD: the fail-safe, which no model can say."""
KINDS = {ActionKind.FORWARD: 1, ActionKind.TURN_LEFT: 2, ActionKind.TURN_RIGHT: 3, ActionKind.STOP: 4}
SIZES: dict[ActionSize | None, int] = {None: 0, ActionSize.SMALL: 1, ActionSize.MEDIUM: 2, ActionSize.LARGE: 3}
OUTCOME_CODE = {Outcome.RUNNING: 1, Outcome.DONE: 2, Outcome.BLOCKED: 3, Outcome.TIMEOUT: 4}
_KIND_OF = {number: kind for kind, number in KINDS.items()}
_SIZE_OF = {number: size for size, number in SIZES.items()}


def to_numbers(action: NavigationAction | None) -> tuple[int, int, float]:
    """Return (kind, size, value) of an action; None is HOLD. The value is metres ahead or radians counter-clockwise."""
    if action is None:
        return HOLD, 0, 0.0
    return KINDS[action.kind], SIZES[action.size], action.metres or action.radians


def to_action(kind: int, size: int) -> NavigationAction | None:
    """Return the action of a message; None for HOLD. Raises ValueError for numbers that are no action."""
    if kind == HOLD:
        return None
    if kind not in _KIND_OF or size not in _SIZE_OF:
        raise ValueError(f"kind {kind} with size {size} is no action: kinds are 0 to 4, sizes 0 to 3")
    return NavigationAction(_KIND_OF[kind], _SIZE_OF[size])
