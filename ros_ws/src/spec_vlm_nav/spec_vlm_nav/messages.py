"""Numbers of our ROS messages <-> the project's own types, as in `NavigationAction.msg`. No ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import msgspec

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.motion import Outcome
from speculation.language.prompts import MOTIONS, ActionKind, ActionSize, Blocked, NavigationAction, Past, to_past
from speculation.wire import MAX_PROMPT_CHARS

CLOUD_VERIFIED, EDGE_ONLY, FALLBACK = 0, 1, 2
"""NavigationAction.source."""
SOURCE_WORDS = {CLOUD_VERIFIED: "verified", EDGE_ONLY: "draft model alone", FALLBACK: "fail-safe"}
HOLD = 0
"""NavigationAction.HOLD: the fail-safe, which no model can answer."""
KINDS = {
    ActionKind.FORWARD: 1, ActionKind.TURN_LEFT: 2, ActionKind.TURN_RIGHT: 3, ActionKind.STOP: 4,
    ActionKind.NOT_HERE: 5,
}  # fmt: skip
SIZES: dict[ActionSize | None, int] = {None: 0, ActionSize.SMALL: 1, ActionSize.MEDIUM: 2, ActionSize.LARGE: 3}
OUTCOME_CODE = {
    Outcome.RUNNING: 1, Outcome.DONE: 2, Outcome.BLOCKED: 3, Outcome.TIMEOUT: 4, Outcome.NO_ODOMETRY: 6,
    Outcome.FAULT: 7,
}  # fmt: skip
OUTCOME_OF = {number: outcome for outcome, number in OUTCOME_CODE.items()}
MAX_DONE = 1000
_FIGURES = get_type_hints(DecodingStats)
_KIND_OF = {number: kind for kind, number in KINDS.items()}
_SIZE_OF = {number: size for size, number in SIZES.items()}


@dataclass(frozen=True)
class AskedPrompt:
    """The exact prompt about the frame whose header is stamped `stamp_ns`."""

    stamp_ns: int
    prompt: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]

    @property
    def instruction(self) -> str:
        """What the model was asked to find: the prompt's first line."""
        return self.prompt.partition("\n")[0]

    def to_json(self) -> str:
        """Return the text of the topic's std_msgs/String."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> AskedPrompt:
        """Read the text of a message. Raises ValueError, naming the field, for anything else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ValueError(f"a recorded prompt must be JSON with stamp_ns and prompt: {error}") from None


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
        raise ValueError(f"kind {kind} with size {size} is no action: kinds are 0 to {max(_KIND_OF)}, sizes 0 to 3")
    return NavigationAction(_KIND_OF[kind], _SIZE_OF[size])


def to_done(texts: Sequence[str]) -> tuple[Past, ...]:
    """Return the entries of a goal's `done`. Raises ValueError, naming the place, for a text that is no motion."""
    if len(texts) > MAX_DONE:
        raise ValueError(f"done has {len(texts)} actions, the limit is {MAX_DONE}")
    entries: list[Past] = []
    for place, text in enumerate(texts):
        entry = to_past(text)
        action = entry.action if isinstance(entry, Blocked) else entry
        if entry is None or action not in MOTIONS:
            known = ", ".join(known.text for known in MOTIONS)
            raise ValueError(f"done[{place}] is {text[:40]!r}; known are {known}, each also with 'blocked' behind it")
        entries.append(entry)
    return tuple(entries)


def figures(stats: DecodingStats) -> dict[str, Any]:
    """Return the fields of `DecodingStats.msg` that are figures of `stats`: the figure's own name and value.

    A figure that is not known (None) becomes -1; counts by exit layer become two lists.
    """
    found: dict[str, Any] = {"tau": float(stats.tau)}
    for name, kind in _FIGURES.items():
        value = getattr(stats, name)
        found[name] = -1.0 if value is None else kind(value) if kind in (int, float) else value
    by_layer = dict(sorted(stats.early_hits.items()))
    return found | {"early_layers": [*by_layer], "early_hits": [*by_layer.values()]}
