"""Oracle decision -> words: the answers that the embedded pair learns.

An answer names the target, its side and distance, sometimes a look-alike, the reason, then the action. Which wording is
likely depends on what is in the image, so that a small draft, which sees less, also words things differently: with
one fixed template draft and target would never disagree and acceptance would be worth nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from adapters_training.records import Frame, Seen, Task
from speculation.prompts import ResponseOrder, compose, format_answer, to_navigation_action

INSTRUCTIONS = (
    "find the {target}",
    "go to the {target}",
    "walk to the {target}",
    "look for the {target}",
    "please find the {target}",
    "bring me to the {target}",
)

SIDES = {
    "left": ("on the left", "to my left"),
    "slightly left": ("slightly left", "a little to the left"),
    "ahead": ("straight ahead", "in front of me"),
    "slightly right": ("slightly right", "a little to the right"),
    "right": ("on the right", "to my right"),
}
_SEE = (
    "I see the {target} {side}, about {distance} away.",
    "The {target} is {side}, about {distance} away.",
    "There is the {target}, {side} and about {distance} away.",
    "The {target} stands {side} at about {distance}.",
)
_OTHER = (
    "The {other} {side} is not it.",
    "I also see the {other} {side}.",
    "Next to it I notice the {other} {side}.",
)
MISSING = (
    "I do not see the {target}.",
    "The {target} is not in view.",
    "There is no {target} here.",
)
MISSING_OTHER = (
    "Only the {other} is {side}.",
    "I just see the {other} {side}.",
    "The {other} {side} is not it.",
)
_WHY = {
    "search": ("I look around.", "I keep searching.", "I turn to look around."),
    "explore": (
        "I have turned all around, so I walk on.",
        "It is not around me, so I walk on.",
        "I walk on to search.",
    ),
    "reached": ("I am close enough, so I stop.", "I have reached it.", "It is right here, so I am done."),
    "centre": ("I am close, so I turn to face it.", "It is near but off to the side, so I turn to it."),
    "turn": ("It is off to the side, so I turn to face it.", "I turn towards it.", "I need to turn to it."),
    "forward": ("The way is clear, so I go on.", "Nothing is in the way, so I walk on.", "I walk towards it."),
    "detour": (
        "The {blocker} is in the way, so I go around it.",
        "I walk around the {blocker}.",
        "The {blocker} blocks the way.",
    ),
}


def describe_distance(metres: float) -> str:
    """Return a distance in half metres, at least half a metre: '0.5 m', '1 m', '1.5 m' ..."""
    halves = max(1, round(metres * 2))
    return f"{halves // 2} m" if halves % 2 == 0 else f"{halves // 2}.5 m"


def _choose(options: Sequence[str], cue: int, rng: random.Random) -> str:
    # Seven of ten times the cue decides, else chance: learnable, and never one template.
    return options[cue % len(options)] if rng.random() < 0.7 else rng.choice(options)


def _where(seen: Seen, rng: random.Random) -> str:
    return _choose(SIDES[seen.side], int(seen.distance), rng)


def _name(colour: str, object_class: str) -> str:
    return f"{colour} {object_class}"


def nearest_other(frame: Frame, task: Task) -> Seen | None:
    """Return the nearest visible object that is not the target."""
    others = [s for s in frame.seen if (s.colour, s.object_class) != (task.colour, task.object_class)]
    return min(others, key=lambda s: s.distance, default=None)


def reasoning(frame: Frame, task: Task, rng: random.Random) -> str:
    """Return one wording of what is seen and why the action follows."""
    target = _name(task.colour, task.object_class)
    other = nearest_other(frame, task)
    cue = len(frame.seen) + len(task.object_class)
    parts = []
    if task.seen is None:
        parts.append(_choose(MISSING, cue, rng).format(target=target))
        if other is not None:
            text = _choose(MISSING_OTHER, cue, rng)
            parts.append(text.format(other=_name(other.colour, other.object_class), side=_where(other, rng)))
    else:
        text = _choose(_SEE, cue + round(task.seen.distance), rng)
        distance = describe_distance(task.seen.distance)
        parts.append(text.format(target=target, side=_where(task.seen, rng), distance=distance))
        look_alike = other is not None and (other.object_class == task.object_class or other.colour == task.colour)
        if other is not None and (look_alike or rng.random() < 0.15):
            text = _choose(_OTHER, cue, rng)
            parts.append(text.format(other=_name(other.colour, other.object_class), side=_where(other, rng)))
    parts.append(_choose(_WHY[_why(task)], cue, rng).format(blocker=task.blocker or "way"))
    return " ".join(parts)


def _why(task: Task) -> str:
    if task.reason == "approach":
        return "forward" if task.action.startswith("forward") else "turn"
    return task.reason


def answer(frame: Frame, task: Task, rng: random.Random, order: ResponseOrder = ResponseOrder.REASON_FIRST) -> str:
    """Return one whole answer: reasoning and action. Raises ValueError for a task whose action is no action."""
    action = to_navigation_action(task.action)
    if action is None:
        raise ValueError(f"a training frame asks for the action {task.action!r}: make the data again")
    return format_answer(reasoning(frame, task, rng), action, order)


def instruction(task: Task, rng: random.Random) -> str:
    """Return one wording of the instruction."""
    return rng.choice(INSTRUCTIONS).format(target=_name(task.colour, task.object_class))


def prompt(task: Task, rng: random.Random, order: ResponseOrder = ResponseOrder.REASON_FIRST) -> str:
    """Return the prompt of a task: one wording of the instruction, what was done, and how to answer."""
    done = [action for action in map(to_navigation_action, task.done) if action is not None]
    return compose(instruction(task, rng), done, order)
