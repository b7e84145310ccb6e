"""Instruction -> chat, answer -> action: the wording that robot, simulator, training and models share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, groupby, pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from speculation.language.thinking import MAX_SHOWN_CHARS, UNFINISHED, split_thinking
from speculation.wire import MAX_WORDS, Word

FORWARD_METRES = {"small": 0.25, "medium": 0.50, "large": 0.75}
TURN_DEGREES = {"small": 15.0, "medium": 30.0, "large": 45.0}
ACTION_MARK = "Action:"
MEMORY_LINE = "Seen: "
"""How the first line of a search's memory begins (`speculation.language.search_memory`)."""
ACTION_FIRST_LINE = "Action first"
"""The last line of a prompt without a guide whose answer is to begin with the action."""
MAX_INSTRUCTION_CHARS = 1000
VOCABULARY_FILE = "objects.json"
PROMPT_FORMS = (1, 2)
SEARCH_FORM = 2
"""Prompts from this form on list blocked actions and what was searched, see `Vocabulary`."""
HISTORY_RUNS = 4
"""How many runs of equal actions a prompt lists."""
DONE_LINE = "Done: "
"""How the line of what was done so far begins."""
TURN_END = "\x1e"
"""What separates the turns of a conversation in a prompt: ASCII's record separator, which no keyboard types."""
ROLE_MARK, IMAGE_MARK = "\x01", "\x1a"
"""ASCII's start of heading, with which every turn of a `conversation` begins, the first letter of its role behind it;
and ASCII's substitute, which stands there for an image."""
ROLES = ("system", "user", "assistant")


class ActionKind(str, Enum):
    """What the robot does next. `STOP` means the task is done; the fail-safe HOLD is no model action.

    `NOT_HERE` means that all that can be reached was searched and the object is not there. Models of prompt form 1
    (`Vocabulary.form`) never learned it.
    """

    FORWARD = "forward"
    TURN_LEFT = "turn left"
    TURN_RIGHT = "turn right"
    STOP = "stop"
    NOT_HERE = "not here"

    @property
    def moves(self) -> bool:
        """Whether the robot moves; the other kinds end a goal."""
        return self not in (ActionKind.STOP, ActionKind.NOT_HERE)


TURNS = (ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT)
LONGEST_TURN = 540
"""Degrees that a robot turns without going anywhere: once around, and on to the way that it takes then."""
DETOUR_DEGREES = 45
"""How far a robot turns away from where a `forward` was blocked before it goes ahead again."""
LONGEST_SEARCH = 720
"""Degrees of turning, among what a prompt lists as done, that are enough where nothing new is to be seen."""


class ActionSize(str, Enum):
    """How far: 25/50/75 cm or 15/30/45 degrees."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


@dataclass(frozen=True)
class NavigationAction:
    """One mid-level action. Raises ValueError for a motion without a size, or a size where nothing moves."""

    kind: ActionKind
    size: ActionSize | None = None

    def __post_init__(self) -> None:
        if self.kind.moves != (self.size is not None):
            raise ValueError(
                f"action {self.kind.value!r} with size {self.size}: motions have a size, stop and not here have none"
            )

    @property
    def text(self) -> str:
        """The text in the answer, e.g. 'turn left medium'."""
        return self.kind.value if self.size is None else f"{self.kind.value} {self.size.value}"

    @property
    def metres(self) -> float:
        """Distance ahead, 0 for all that does not go forward."""
        return FORWARD_METRES[self.size.value] if self.kind is ActionKind.FORWARD and self.size else 0.0

    @property
    def radians(self) -> float:
        """Heading change, counter-clockwise positive (REP 103), 0 for all that is no turn."""
        if self.size is None or self.kind is ActionKind.FORWARD:
            return 0.0
        angle = math.radians(TURN_DEGREES[self.size.value])
        return angle if self.kind is ActionKind.TURN_LEFT else -angle


class ResponseOrder(str, Enum):
    """Whether an answer gives its reasons before its action, or acts first: known sooner, reasoned less."""

    REASON_FIRST = "reason_first"
    ACTION_FIRST = "action_first"


class Guidance(str, Enum):
    """Whether prompts explain the robot and its actions; `auto`: to models without a list of objects they know."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def applies(self, vocabulary: Vocabulary | None) -> bool:
        """Return whether a model with this vocabulary gets the guide."""
        return vocabulary is None if self is Guidance.AUTO else self is Guidance.ALWAYS


@dataclass(frozen=True)
class Blocked:
    """An action that something cut short, as a prompt of form 2 lists it among what was done."""

    action: NavigationAction

    @property
    def text(self) -> str:
        """E.g. 'forward large blocked'."""
        return f"{self.action.text}{_BLOCKED}"


_MARKS = TURN_END + ROLE_MARK + IMAGE_MARK
_BLOCKED = " blocked"
_DIGITS = 4
"""Digits that are read of how often an action was repeated; an instruction may hold longer numbers."""
Past: TypeAlias = "NavigationAction | Blocked"
"""One entry of what was done so far."""
STOP, NOT_HERE = NavigationAction(ActionKind.STOP), NavigationAction(ActionKind.NOT_HERE)
MOTIONS: tuple[NavigationAction, ...] = tuple(
    NavigationAction(kind, size) for kind in ActionKind if kind.moves for size in ActionSize
)
ACTIONS: tuple[NavigationAction, ...] = (*MOTIONS, STOP, NOT_HERE)
_BY_TEXT = {action.text: action for action in ACTIONS}
_STOP_WORD = re.compile(rf"\s*{ActionKind.STOP.value}\b", re.IGNORECASE)
_TASK = (
    "You steer a robot dog; the picture is what its front camera sees now. Small, medium and large are "
    f"{', '.join(f'{metres:g} m' for metres in FORWARD_METRES.values())} forward or "
    f"{', '.join(f'{degrees:g}' for degrees in TURN_DEGREES.values())} degrees of turning. Stop only when the object "
    "is right in front of you, within half a metre. Say not here only when you have searched everywhere."
)
_CHOICE = f"'{ACTION_MARK} ' and one of: {', '.join(_BY_TEXT)}."
GUIDE = {
    ResponseOrder.REASON_FIRST: f"{_TASK} Say in one or two sentences where the object is and why you act, then end "
    f"with a line of {_CHOICE}",
    ResponseOrder.ACTION_FIRST: f"{_TASK} Begin with a line of {_CHOICE} Then say in one or two sentences why.",
}
"""How to answer, for models that were not trained on these actions."""


def nearest_action(kind: ActionKind, moved: float) -> NavigationAction | None:
    """Return the action of `kind` that comes nearest to what was moved, in metres or radians in its direction.

    None for less than half of the smallest, for no number, and for a stop.
    """
    sizes = [action for action in MOTIONS if action.kind is kind]
    if not sizes or not math.isfinite(moved) or moved < _amount(sizes[0]) / 2.0:
        return None
    return min(sizes, key=lambda action: abs(_amount(action) - moved))


def _amount(action: NavigationAction) -> float:
    return action.metres or abs(action.radians)


def to_navigation_action(text: str) -> NavigationAction | None:
    """Return the action that `NavigationAction.text` names, None for any other text."""
    return _BY_TEXT.get(text)


def to_past(text: str) -> Past | None:
    """Return the entry of a list of what was done that has this text, None for any other text."""
    action = to_navigation_action(text.removesuffix(_BLOCKED))
    return Blocked(action) if action is not None and text.endswith(_BLOCKED) else action


@dataclass(frozen=True)
class ParsedAnswer:
    """An answer split into its reasoning and its action; `action` is None where there is a `problem`."""

    reasoning: str
    action: NavigationAction | None
    problem: str = ""
    thinking: str = ""
    """What the model thought before it answered."""

    @property
    def shown(self) -> str:
        """What people are shown: the end of the thinking, and the reasoning."""
        thought = self.thinking
        if len(thought) > MAX_SHOWN_CHARS:
            thought = f"... {thought[-MAX_SHOWN_CHARS:]}"
        return "\n".join(part for part in (thought, self.reasoning) if part)


def parse_answer(text: str) -> ParsedAnswer:
    """Split a model's answer, behind what it thought first, at its 'Action:' marks.

    Each mark names what stands on its line; all else is reasoning.
    The first mark that names a known action counts, and a stop at any mark wins over every motion. A mark that begins
    with 'stop' and goes on leaves an answer without a readable stop unreadable. A robot that cannot read its answer
    must stand, so nothing is guessed, snapped or searched for.
    """
    thinking, said = split_thinking(text)
    if thinking and not said.strip():
        return ParsedAnswer("", None, UNFINISHED, thinking)
    return replace(_parse(said), thinking=thinking)


def _parse(text: str) -> ParsedAnswer:
    before, *marked = text.split(ACTION_MARK)
    if not marked:
        return ParsedAnswer(text.strip(), None, f"no '{ACTION_MARK}' in the answer {text.strip()!r}")
    named = [_named(words) for words in marked]
    actions = [action for action, _ in named]
    unclear = [words for words in marked if _STOP_WORD.match(words)] or marked[-1:]
    if STOP in actions:
        index = actions.index(STOP)
    elif _STOP_WORD.match(unclear[0]) or not any(actions):
        reasoning, _, _ = text.rpartition(ACTION_MARK)
        problem = f"unknown action {_plain(unclear[0])!r}; known are {', '.join(_BY_TEXT)}"
        return ParsedAnswer(reasoning.strip(), None, problem)
    else:
        index = next(place for place, action in enumerate(actions) if action is not None)
    ahead = ACTION_MARK.join([before, *marked[:index]]).strip()
    behind = ACTION_MARK.join([named[index][1], *marked[index + 1 :]]).strip()
    return ParsedAnswer("\n".join(part for part in (ahead, behind) if part), actions[index])


def committed_action(text: str) -> tuple[ActionKind, ActionSize | None] | None:
    """Return what the beginning of an answer settles about its action: the kind, and the size once it is there too.

    However the answer goes on, `parse_answer` of all of it finds this action, a stop or nothing at all, unless it goes
    on so that this function takes the action back: it then returns something else for the longer text. None: nothing
    is settled, also while the model thinks, or the answer could still turn into a stop. A stop is settled as soon as a
    mark begins with one.
    """
    marked = split_thinking(text)[1].split(ACTION_MARK)[1:]
    if not marked:
        return None
    if any(_STOP_WORD.match(words) for words in marked):
        return ActionKind.STOP, None
    *closed, last = marked
    if ActionKind.STOP.value.startswith(_plain(last)):
        return None
    for words in closed:
        action, _ = _named(words)
        if action is not None:
            return action.kind, action.size
    return _begun(last)


def _begun(words: str) -> tuple[ActionKind, ActionSize | None] | None:
    """Return what the words after the last mark settle, which may go on."""
    line, newline, _ = words.lstrip().partition("\n")
    action = _BY_TEXT.get(_plain(line))
    if action is not None:
        return action.kind, action.size
    if newline:
        return None
    start = " ".join(line.split()).lower() + (" " if line[-1:].isspace() else "")
    for kind in ActionKind:
        if start.startswith(kind.value) and any(text.startswith(start) for text in _BY_TEXT):
            return kind, None
    return None


def _named(words: str) -> tuple[NavigationAction | None, str]:
    """Return the action that the words after a mark begin with, alone on its line, and the text behind that line."""
    line, _, rest = words.lstrip().partition("\n")
    action = _BY_TEXT.get(_plain(line))
    return (action, rest) if action is not None else (_BY_TEXT.get(_plain(words)), "")


def _plain(words: str) -> str:
    return " ".join(words.split()).rstrip(".").lower()


def format_answer(reasoning: str, action: NavigationAction, order: ResponseOrder = ResponseOrder.REASON_FIRST) -> str:
    """Return the answer text that `parse_answer` splits again."""
    marked = f"{ACTION_MARK} {action.text}"
    return f"{marked}\n{reasoning}" if order is ResponseOrder.ACTION_FIRST else f"{reasoning}\n{marked}"


def recent(done: Sequence[Past]) -> list[Past]:
    """Return the latest actions, as many as a prompt lists: the last HISTORY_RUNS runs of equal ones, oldest first."""
    runs = [list(run) for _, run in groupby(done)]
    return [entry for run in runs[-HISTORY_RUNS:] for entry in run]


def history(done: Sequence[Past]) -> str:
    """Return the latest actions as a prompt lists them, oldest first: 'forward large, turn left large x7'."""
    runs = [(text, len(list(run))) for text, run in groupby(action.text for action in recent(done))]
    return ", ".join(text if count == 1 else f"{text} x{count}" for text, count in runs)


def compose(
    instruction: str,
    done: Sequence[Past] = (),
    order: ResponseOrder = ResponseOrder.REASON_FIRST,
    guide: bool = False,
    memory: Sequence[str] = (),
    camera: Sequence[str] = (),
) -> str:
    """Return the prompt of one step: what to find, what was done for it so far, and how to answer.

    `guide` explains the robot and its actions to a model that was not trained on them, behind the lines of `camera`,
    which describe its camera. `memory` are the lines of `speculation.language.search_memory`, for models of prompt
    form 2.
    """
    # An instruction is one turn: nobody puts words into the model's mouth.
    lines = [instruction.translate(dict.fromkeys(map(ord, _MARKS), " ")).strip()]
    if done:
        lines.append(f"{DONE_LINE}{history(done)}")
    lines += memory
    if guide:
        lines += [*camera, GUIDE[order]]
    elif order is ResponseOrder.ACTION_FIRST:
        lines.append(ACTION_FIRST_LINE)
    return "\n".join(lines)


def response_order(prompt: str) -> ResponseOrder:
    """Return the order in which a prompt of `compose` asks for reasons and action."""
    asks = (ACTION_FIRST_LINE, GUIDE[ResponseOrder.ACTION_FIRST])
    return ResponseOrder.ACTION_FIRST if prompt.rpartition("\n")[2] in asks else ResponseOrder.REASON_FIRST


def listed(prompt: str) -> list[Past]:
    """Return the actions that a prompt of `compose` lists as done, oldest first; none where it has no such line."""
    for line in prompt.split("\n")[1:]:
        if line.startswith(DONE_LINE):
            runs = [run.partition(" x") for run in line.removeprefix(DONE_LINE).split(", ")]
            known = [(to_past(text), int(count[:_DIGITS]) if count.isdecimal() else 1) for text, _, count in runs]
            return [entry for entry, count in known[-HISTORY_RUNS:] if entry is not None for _ in range(count)]
    return []


def in_vain(done: Sequence[Past]) -> frozenset[ActionKind]:
    """Return the motions that lead nowhere after these actions, and that a greedy model would repeat for ever.

    Where a `forward` was blocked, see `_detour`. Else all turns are in vain where the robot stands and turned one and a
    half times around, turned back three times, was blocked in two turns, or looked before the way it looks now and the
    way before that; and right after a turn that something cut short, turns of its kind.
    """
    standing = list(takewhile(lambda entry: isinstance(entry, Blocked) or entry.radians, reversed(done)))[::-1]
    ahead = [place for place, entry in enumerate(standing) if isinstance(entry, Blocked) and entry.action.metres]
    if ahead:
        return _detour(standing[ahead[0] :], standing[ahead[-1] :])
    turns = [math.degrees(entry.radians) for entry in standing if isinstance(entry, NavigationAction)]
    ways = [round(way) for way in accumulate(turns, initial=0.0)]
    again = ways[-1] in ways[:-1] and ways[-2] in ways[:-2]
    back = sum(one * other < 0 for one, other in pairwise(turns))
    bumps = sum(isinstance(entry, Blocked) for entry in standing)
    if abs(ways[-1]) >= LONGEST_TURN or back >= 3 or bumps >= 2 or again:
        return frozenset(TURNS)
    return frozenset(entry.action.kind for entry in standing[-1:] if isinstance(entry, Blocked))


def _detour(first: Sequence[Past], last: Sequence[Past]) -> frozenset[ActionKind]:
    """Return the motions that lead back to what blocked a `forward`. `first` and `last` begin with the first and the
    last block since the robot went ahead.

    It turns `DETOUR_DEGREES` away to one side, the one that it chose, or the other where it could not turn at all; less
    where it turned as far as it can. Then it goes ahead.
    """
    turned = sum(entry.radians for entry in last if isinstance(entry, NavigationAction))
    if isinstance(last[-1], Blocked) and last[-1].action.radians * turned > 0:
        return frozenset(TURNS)
    stuck = [entry.action.radians for entry in first if isinstance(entry, Blocked) and entry.action.radians]
    sides = [-stuck[-1]] if stuck else [entry.radians for entry in first if isinstance(entry, NavigationAction)]
    if not sides:
        return frozenset({ActionKind.FORWARD})
    if round(math.degrees(turned if sides[0] > 0 else -turned)) >= DETOUR_DEGREES:
        return frozenset(TURNS)
    return frozenset({ActionKind.FORWARD, ActionKind.TURN_RIGHT if sides[0] > 0 else ActionKind.TURN_LEFT})


def offers_not_here(prompt: str) -> bool:
    """Return whether a prompt of `compose` is one that may be answered with `not here`: of form 2, or with a guide."""
    lines = prompt.split("\n")
    return lines[-1] in GUIDE.values() or any(line.startswith(MEMORY_LINE) for line in lines[1:])


def chat(prompt: str, images: int = 1, in_parts: bool = True) -> list[dict[str, Any]]:
    """Return the chat messages of one step: its frames first, the oldest before the others, then the instruction.

    A prompt of `continued` is a conversation: its parts are user and assistant in turns, and the first has the frames.
    One of `conversation` names its turns' roles and the places of its images.
    Templates of models that see may drop an instruction that is no part, those of language models one that is:
    `in_parts` is which of them it is for. With images it is always in parts.
    """
    if is_conversation(prompt):
        return _named_turns(prompt, in_parts or images > 0)
    turns, roles = [turn.strip() for turn in prompt.split(TURN_END)], ("user", "assistant")
    if not images and not in_parts:
        return [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]
    messages: list[dict[str, Any]] = [
        {"role": roles[place % 2], "content": [{"type": "text", "text": turn}]} for place, turn in enumerate(turns)
    ]
    messages[0]["content"][:0] = [{"type": "image"} for _ in range(images)]
    return messages


def continued(prompt: str, answer: str, question: str) -> str:
    """Return the prompt that asks `question` after `prompt` and its answer, in the same conversation.

    Raises ValueError where the question, or the answer, holds the separator of turns.
    """
    if TURN_END in answer + question:
        raise ValueError("a turn of a conversation holds the control character U+001E; leave it out")
    return TURN_END.join((prompt, answer, question))


def conversation(turns: Sequence[tuple[str, str]]) -> str:
    """Return the prompt of a conversation whose turns are roles with texts, in which IMAGE_MARK stands for an image.

    Raises ValueError for a role that is none of ROLES, and for a text with a mark of this form in it.
    """
    for role, text in turns:
        if role not in ROLES:
            raise ValueError(f"a turn's role is {role!r}; it is one of {', '.join(ROLES)}")
        if TURN_END in text or ROLE_MARK in text:
            raise ValueError("a turn holds the control character U+001E or U+0001; leave it out")
    return TURN_END.join(f"{ROLE_MARK}{role[0]}{text}" for role, text in turns)


def is_conversation(prompt: str) -> bool:
    """Return whether a prompt is one of `conversation`, which may do without images also where the model sees."""
    return prompt.startswith(ROLE_MARK)


def _named_turns(prompt: str, in_parts: bool) -> list[dict[str, Any]]:
    """Return the chat messages of a prompt of `conversation`.

    Raises ValueError for a turn that names no role, and for an image where the model sees none.
    """
    messages: list[dict[str, Any]] = []
    roles = {role[0]: role for role in ROLES}
    for turn in prompt.split(TURN_END):
        role, text = roles.get(turn[1:2]), turn[2:].strip()
        if turn[:1] != ROLE_MARK or role is None or (IMAGE_MARK in text and not in_parts):
            raise ValueError("a turn of the conversation names no role, or has an image for a model that sees none")
        content: list[dict[str, str]] = []
        for place, words in enumerate(text.split(IMAGE_MARK)):
            content += [{"type": "image"}] if place else []
            content += [{"type": "text", "text": words}] if words else []
        messages.append({"role": role, "content": content if in_parts else text})
    return messages


class Vocabulary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The objects that a small model was trained to find; big models have none and take any instruction.

    `form` is the form of the prompts that it was trained on. 1: one colour and one class, and the actions done. 2:
    besides a class or a colour alone, blocked actions, the memory of the search (`speculation.language.search_memory`)
    and the action `not here`.
    """

    colours: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=MAX_WORDS)]
    classes: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=MAX_WORDS)]
    form: int = PROMPT_FORMS[0]

    @classmethod
    def load(cls, folder: Path) -> Vocabulary | None:
        """Read `objects.json` from a model folder; None where the folder has none.

        Raises ValueError, naming file and limit, for a file that holds no words that a message could carry.
        """
        path = folder / VOCABULARY_FILE
        if not path.exists():
            return None
        try:
            vocabulary = msgspec.json.decode(path.read_bytes(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}; fetch or train the model again") from None
        if vocabulary.form not in PROMPT_FORMS:
            known = ", ".join(map(str, PROMPT_FORMS))
            raise ValueError(
                f"{path}: form is {vocabulary.form}; known forms of prompts are {known}: update this program"
            )
        return vocabulary

    @classmethod
    def of(cls, colours: Sequence[str], classes: Sequence[str], form: int = 1) -> Vocabulary | None:
        """Return the words that a verifier reports; None where it names none, for a model that takes any."""
        return cls(tuple(colours), tuple(classes), form) if colours and classes else None

    def save(self, folder: Path) -> None:
        """Write `objects.json` into a model folder."""
        (folder / VOCABULARY_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def asked_form(vocabulary: Vocabulary | None) -> int:
    """Return the form of the prompts that a model is asked in: its vocabulary's, 1 where it has none."""
    return PROMPT_FORMS[0] if vocabulary is None else vocabulary.form


@dataclass(frozen=True)
class Target:
    """The object that an instruction asks for."""

    colour: str
    object_class: str

    @property
    def text(self) -> str:
        """E.g. 'silver bottle'."""
        return f"{self.colour} {self.object_class}"
