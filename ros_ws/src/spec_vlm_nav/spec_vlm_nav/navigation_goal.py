"""One goal: what is asked for, what was done, searched and seen for it so far, and how it ends. No ROS.

The model remembers nothing, so each prompt is made of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from spec_vlm_nav.motion import Outcome
from spec_vlm_nav.navigator_interfaces import Execution, Frame
from spec_vlm_nav.sighting import PLACEHOLDER, FrameSettings, Sighting, camera_lines, sighting
from speculation.language.instructions import Understood, sentence_for, understand
from speculation.language.prompts import (
    PROMPT_FORMS,
    SEARCH_FORM,
    Blocked,
    Guidance,
    NavigationAction,
    Past,
    ResponseOrder,
    Vocabulary,
    asked_form,
    compose,
    nearest_action,
)
from speculation.language.search_memory import SearchMemory
from speculation.language.thinking import split_thinking
from speculation.wire import Jpegs, jpeg_of

HOLD_UNCONFIRMED = "; action_executor did not confirm the HOLD"
"""What a goal's last sentence ends with where nobody knows whether the robot stands."""


PLACES_LIMIT = 3
"""A goal ends where answers give more places than this for the object that are too far apart to be one ..."""
APART_M, APART_SHARE = 0.5, 0.3
"""... by more metres than this, and a share of the distance from which one was seen on top."""
STOP_WITHIN_M = 1.5
"""A STOP further than this from where answers gave the object ends the goal without success."""


class End(Enum):
    """How a goal ended."""

    STOPPED = "the model says that the task is done"
    NOT_FOUND = "the model says that the object is not here"
    CANCELLED = "cancelled"
    PREEMPTED = "a newer goal took over"
    SHUTDOWN = "the node was deactivated or ends"
    TIMEOUT = "the time allowance is used up"
    OUT_OF_ACTIONS = "the allowed number of actions is used up"
    STALE_CAMERA = "the time allowance ran out without a fresh camera frame"
    LINK_LOST = "no verifier"
    BAD_INSTRUCTION = "the instruction cannot be followed"
    NO_VALID_ACTION = "the model's answers were no actions"
    CONTRADICTED = "odometry contradicts the model's answers"
    OBSTACLE = "something keeps blocking the robot"
    ROBOT_FAULT = "the robot does not execute actions"


class GoalEnded(Exception):
    """Ends a goal from within; its text is a detail, which may be empty."""

    def __init__(self, end: End, detail: str = "") -> None:
        super().__init__(detail)
        self.end = end


@dataclass(frozen=True)
class GoalResult:
    """The end of a goal."""

    end: End
    message: str
    """How it ended, in a sentence."""
    actions: int
    """Motions that were begun."""
    elapsed_s: float
    held: bool = True
    """False where the robot was to stand and the executor did not confirm it; `message` ends with that."""


@dataclass(frozen=True)
class Prompt:
    """What a model is asked about a frame, and what that is made of."""

    text: str
    jpegs: Jpegs
    """The frame, and before it those of the views before."""
    done: tuple[Past, ...]
    """What it lists as carried out."""
    vocabulary: Vocabulary | None
    """What the model that answers knows."""
    memory: SearchMemory | None
    """What was searched, this frame included; None where the prompt has none of it."""


@dataclass(frozen=True)
class Moved:
    """What an action came to."""

    part: NavigationAction | None
    """The action that comes nearest to what was moved, by odometry; None: less than half of the smallest."""
    blocked: NavigationAction | None = None
    """The whole action, where something blocked it."""

    def listed(self, form: int) -> Past | None:
        """Return how prompts of this form list it, None where they do not."""
        return Blocked(self.blocked) if self.blocked is not None and form >= SEARCH_FORM else self.part


class GoalRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was done and searched for a goal, for a file."""

    actions: int = 0
    moved: tuple[Moved, ...] = ()
    searched: SearchMemory = msgspec.field(default_factory=SearchMemory)


class NavigationGoal:
    """Makes the prompts of one goal.

    A prompt lists what was done, by odometry: of an action that something cut short the part that was moved. What a dry
    run decides is not listed. A model of prompt form 2 (`Vocabulary.form`) gets a blocked action as such, and what this
    goal has searched (`SearchMemory`). A model without a list of objects is asked as with form 1: nobody trained it on
    those lines.
    """

    def __init__(
        self,
        instruction: str,
        done: Sequence[Past] = (),
        dry: bool = False,
        frames: int = 1,
        camera: FrameSettings | None = None,
    ) -> None:
        """`done`: what was carried out for it before. `frames` that a question may hold, of the latest views.

        `camera`: what guided prompts tell of it; None: nothing.
        """
        self.instruction, self.is_dry = instruction, dry
        self.actions = 0
        """Motions that were begun."""
        self._moved = [Moved(None, entry.action) if isinstance(entry, Blocked) else Moved(entry) for entry in done]
        self._form = PROMPT_FORMS[-1]
        """Form of the prompts of the model that was asked last."""
        self._wanted: dict[Vocabulary, Understood] = {}
        self._memory = SearchMemory()
        """What the frames whose answers were taken have shown."""
        self._claimed: list[tuple[tuple[float, float], float]] = []
        """Where verified answers first gave each place of the object, and how far apart another one has to be."""
        self._camera = camera
        self._named: tuple[str, str] | None = None
        """What the answer to the last prompt calls the object: colour and class; None where nobody knows."""
        self._frames = frames
        self._views: list[tuple[int, bytes]] = []
        """The frames of the last views, the oldest first, each with the number of actions done before it."""

    @property
    def done(self) -> tuple[Past, ...]:
        """What was carried out so far, by odometry, as the model that was asked last gets it."""
        listed = (moved.listed(self._form) for moved in self._moved)
        return tuple(entry for entry in listed if entry is not None)

    def record(self, under_way: NavigationAction | None = None, metres_or_radians: float = 0.0) -> GoalRecord:
        """Return what was done and searched so far, with the part of a motion under way that was moved."""
        moved = [*self._moved]
        if under_way is not None:
            moved.append(Moved(nearest_action(under_way.kind, metres_or_radians)))
        return GoalRecord(self.actions + (under_way is not None), tuple(moved), self._memory.copy())

    def restore(self, record: GoalRecord) -> None:
        """Go on from what a record holds."""
        self.actions, self._moved = record.actions, [*record.moved]
        self._memory = record.searched.copy()

    def understood(self, vocabulary: Vocabulary | None) -> str:
        """Return what a model with this list of objects is asked to find; empty for one that takes any instruction.

        Raises ValueError, in a sentence, where it cannot be asked.
        """
        if vocabulary is None:
            sentence_for(self.instruction, None)
            return ""
        if vocabulary not in self._wanted:
            sentence_for(self.instruction, None)
            self._wanted[vocabulary] = understand(self.instruction, vocabulary)
        return self._wanted[vocabulary].instruction

    def prompt(
        self,
        frame: Frame,
        vocabulary: Vocabulary | None,
        order: ResponseOrder,
        guide: Guidance,
        under_way: NavigationAction | None = None,
    ) -> Prompt:
        """Return the prompt about a frame; `under_way` is the motion during which it was taken."""
        self._form = asked_form(vocabulary)
        done = self.done if under_way is None else (*self.done, under_way)
        memory = self._searched(frame) if self._form >= SEARCH_FORM else None
        sentence = self.understood(vocabulary) or self.instruction
        lines = memory.lines() if memory is not None else ()
        guided = guide.applies(vocabulary)
        camera = camera_lines(self._camera) if self._camera is not None else ()
        text = compose(sentence, done, order, guided, lines, camera)
        if vocabulary is not None:
            wanted = self._wanted[vocabulary]
            self._named = wanted.colour, wanted.object_class
        else:
            self._named = PLACEHOLDER if guided else None
        return Prompt(text, self._seen(frame, done), done, vocabulary, memory)

    def answered(self, prompt: Prompt, answer: str, verified: bool = False, stops: bool = False) -> str:
        """Note the prompt's frame, and what the answer says of it, as searched.

        Return what odometry contradicts in the `verified` answers up to this one, in words; empty: nothing, or nobody
        can tell, as in a dry run, where people carry the object. `stops`: whether the answer says that the robot is
        there.
        """
        memory = prompt.memory
        if memory is None or prompt.vocabulary is None:
            return ""
        wanted, before = self._wanted[prompt.vocabulary], memory.last
        memory.read(split_thinking(answer)[1], wanted.colour, wanted.object_class)
        self._memory = memory
        if not verified or self.is_dry:
            return ""
        last, metres = memory.last, memory.metres_to_object
        if last is not None and last != before:
            self._claim(last, APART_M + APART_SHARE * metres)
        if len(self._claimed) > PLACES_LIMIT:
            return f"the object was said to be at {len(self._claimed)} places too far apart to be one"
        if not stops or metres <= STOP_WITHIN_M:
            return ""
        seen = f"{metres:.1f} m from where" if last is not None else "and no answer gave a place where"
        return f"a stop {seen} the object is"

    def sighting(self, answer: str, frame: Frame) -> Sighting | None:
        """Return where the answer to the last prompt, about `frame`, places the object; None where it does not."""
        if self._camera is None or not self._camera.sightings or self._named is None:
            return None
        return sighting(answer, *self._named, frame.place, self._camera.fov_deg)

    def moved(self, action: NavigationAction, execution: Execution | None) -> None:
        """Note what a motion came to; None where nobody took it up."""
        self.actions += 1
        if execution is not None:
            part = nearest_action(action.kind, execution.moved)
            self._moved.append(Moved(part, action if execution.outcome is Outcome.BLOCKED else None))

    def forget_search(self) -> None:
        """Forget what was searched: odometry may count from another place."""
        self._memory = SearchMemory()
        self._claimed.clear()

    def _claim(self, at: tuple[float, float], apart: float) -> None:
        """Note where an answer gives the object, where that is no place that one gave before."""
        if all(math.dist(at, known) > max(apart, other) for known, other in self._claimed):
            self._claimed.append((at, apart))

    def _searched(self, frame: Frame) -> SearchMemory | None:
        """Return what was searched with this frame, None where nobody knows where it was taken.

        A copy: a question may be dropped, and the frame that takes its place must find the memory as it was.
        """
        place = frame.place
        if place is None or not place.finite:
            return None
        memory = self._memory.copy()
        memory.look(place.x, place.y, place.yaw)
        return memory

    def _seen(self, frame: Frame, done: Sequence[Past]) -> Jpegs:
        """Return the frames of a question: its own, and before it those of the views that actions changed since.

        A frame of the same view takes the place of the one before. What a dry run decides counts as done here.
        """
        view = self.actions if self.is_dry else len(done)
        before = [each for each in self._views if each[0] < view]
        self._views = [*before, (view, frame.jpeg)][-self._frames :]
        return jpeg_of([jpeg for _, jpeg in self._views])
