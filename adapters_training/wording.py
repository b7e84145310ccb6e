"""Oracle decision -> words: the answers that the embedded pair learns.

An answer names the target, its side and distance, sometimes a look-alike, the reason, then the action. Which wording is
likely depends on what is in the image, so that a small draft, which sees less, also words things differently: with
one fixed template draft and target would never disagree and acceptance would be worth nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from adapters_training.records import Door, Frame, Seen, Task
from speculation.language.prompts import (
    PROMPT_FORMS,
    ActionKind,
    NavigationAction,
    ResponseOrder,
    Vocabulary,
    compose,
    format_answer,
    to_navigation_action,
    to_past,
)
from speculation.language.search_memory import DOORWAY, SIDE_PHRASES, describe_distance

ACTION_FIRST_SHARE = 0.5
_ANY = "find something "
_SEE = (
    "I see the {target} {side}, about {distance} away.",
    "The {target} is {side}, about {distance} away.",
    "There is the {target}, {side} and about {distance} away.",
    "The {target} stands {side} at about {distance}.",
)
_OTHER = (
    "The {other} {side} is not it.",
    "I also see the {other} {side}.",
)
_NOTHING = (
    "I do not see anything {colour}.",
    "Nothing {colour} is in view.",
    "There is nothing {colour} here.",
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
_DOORS = 2
_DOOR = (
    f"There is a {DOORWAY} {{side}}, about {{distance}} away.",
    f"I see a {DOORWAY} {{side}}, about {{distance}} away.",
)
_WHY = {
    "search": ("I look around.", "I keep searching.", "I turn to look around."),
    "explore": (
        "It is not around me, so I walk on.",
        "Nothing is left to see here, so I walk on.",
        "My search goes on ahead.",
    ),
    "door": (
        "The doorway leads to where I have not looked yet.",
        "It is not here, so I go through the doorway.",
        "All is searched here, so I go on to the next room.",
    ),
    "return": ("Now I turn back to where I have seen it.", "Back there I have seen it.", "There it was before."),
    "not here": ("There is no place left to look.", "All of it is searched.", "No place is left to look."),
    "reached": ("This is close enough, so I stop.", "Now I have reached it.", "It is right here, so I am done."),
    "centre": (
        "It is near but off to the side, so I turn to it.",
        "I am close, so I turn to face it.",
        "So close I only turn to face it.",
    ),
    "turn": ("It is off to the side, so I turn to face it.", "I turn towards it.", "To face it, I turn."),
    "forward": ("The way is clear, so I go on.", "Nothing is in the way, so I walk on.", "I walk towards it."),
    "detour": (
        "I walk around the {blocker}.",
        "The {blocker} is in the way, so I go around it.",
        "The {blocker} blocks the way.",
    ),
}
"""Which of a reason's sentences is written follows from what was asked for alone, and those that may stand behind one
sight begin with different words: else a greedy answer chooses between two reasons by how each may be worded."""


def _choose(options: Sequence[str], cue: int, rng: random.Random) -> str:
    # Seven of ten times the cue decides, else chance: learnable, and never one template.
    return options[cue % len(options)] if rng.random() < 0.7 else rng.choice(options)


def _where(seen: Seen | Door, rng: random.Random) -> str:
    return _choose(SIDE_PHRASES[seen.side], int(seen.distance), rng)


def _name(colour: str, object_class: str) -> str:
    return f"{colour} {object_class}"


def _sight(frame: Frame, task: Task, rng: random.Random) -> str:
    """Return one wording of what is seen, with which a task's reasons begin."""
    others = [seen for seen in frame.seen if (seen.colour, seen.object_class) != (task.colour, task.object_class)]
    other = min(others, key=lambda seen: seen.distance, default=None)
    cue = len(frame.seen) + len(task.object_class)
    parts = []
    if task.seen is None:
        thing = task.query.removeprefix(_ANY)
        if thing != task.query:
            parts.append(_choose(_NOTHING, cue, rng).format(colour=thing))
        else:
            parts.append(_choose(MISSING, cue, rng).format(target=_asked(task)))
        if other is not None:
            text = _choose(MISSING_OTHER, cue, rng)
            parts.append(text.format(other=_name(other.colour, other.object_class), side=_where(other, rng)))
        for door in frame.doors[:_DOORS]:
            # Sides and distances are read back from answers: `speculation.language.search_memory`.
            distance = describe_distance(door.distance)
            parts.append(_choose(_DOOR, cue, rng).format(side=_where(door, rng), distance=distance))
    else:
        text = _choose(_SEE, cue + round(task.seen.distance), rng)
        distance = describe_distance(task.seen.distance)
        parts.append(text.format(target=_target(task), side=_where(task.seen, rng), distance=distance))
        look_alike = other is not None and (other.object_class == task.object_class or other.colour == task.colour)
        if other is not None and (look_alike or rng.random() < 0.15):
            text = _choose(_OTHER, cue, rng)
            parts.append(text.format(other=_name(other.colour, other.object_class), side=_where(other, rng)))
    return " ".join(parts)


def reasoning(frame: Frame, task: Task, rng: random.Random) -> str:
    """Return one wording of what is seen and why the action follows."""
    reason = task.reason
    if reason == "approach":
        reason = "forward" if task.action.startswith("forward") else "turn"
    reasons = _WHY[reason]
    why = reasons[len(_asked(task)) % len(reasons)].format(blocker=task.blocker or "way")
    return f"{_sight(frame, task, rng)} {why}"


def answer(frame: Frame, task: Task, rng: random.Random, order: ResponseOrder = ResponseOrder.REASON_FIRST) -> str:
    """Return one whole answer: reasoning and action. Raises ValueError for a task whose action is no action."""
    action = to_navigation_action(task.action)
    if action is None:
        raise ValueError(f"a training frame asks for the action {task.action!r}: make the data again")
    return format_answer(reasoning(frame, task, rng), action, order)


def instruction(task: Task) -> str:
    """Return the instruction, in the one wording in which a model with a word list is asked."""
    return task.query or f"find the {_target(task)}"


def names_both(task: Task) -> bool:
    """Return whether the instruction names colour and class."""
    return task.query in ("", f"find the {_target(task)}")


def fits(task: Task, form: int) -> bool:
    """Return whether a model of this prompt form can be asked this: one of form 1 knows pairs, and no `not here`."""
    return form > 1 or (names_both(task) and task.action != ActionKind.NOT_HERE.value)


def form_of(folder: Path) -> int:
    """Return the prompt form that the model of a folder was trained on; the newest for one without a word list."""
    words = Vocabulary.load(folder)
    return words.form if words is not None else PROMPT_FORMS[-1]


def random_order(rng: random.Random) -> ResponseOrder:
    """Return where the action of an answer stands; half of all begin with it."""
    return ResponseOrder.ACTION_FIRST if rng.random() < ACTION_FIRST_SHARE else ResponseOrder.REASON_FIRST


def choose_one(tasks: Sequence[Task], rng: random.Random) -> Task:
    """Return a task about something in view seven times of ten, where there are both."""
    visible = [task for task in tasks if task.seen is not None]
    hidden = [task for task in tasks if task.seen is None]
    return rng.choice(visible if visible and (not hidden or rng.random() < 0.7) else hidden)


def prompt(task: Task, order: ResponseOrder = ResponseOrder.REASON_FIRST, form: int = 2, guide: bool = False) -> str:
    """Return the prompt of a task: the instruction, what was done, the memory of the search, and how to answer.

    `form` is the model's (`Vocabulary.form`); one of form 1 gets no memory and nothing that was blocked.
    """
    done = [past for past in map(to_past, task.done) if past is not None]
    if form == 1:
        return compose(instruction(task), [past for past in done if isinstance(past, NavigationAction)], order, guide)
    return compose(instruction(task), done, order, guide, task.memory)


def _asked(task: Task) -> str:
    """Return what is asked for without verb and article: 'red ball', 'ball', 'something red'."""
    words = task.query.removeprefix("find ").removeprefix("the ").removeprefix("a ")
    return words or _target(task)


def _target(task: Task) -> str:
    return _name(task.colour, task.object_class)
