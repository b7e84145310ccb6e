"""What the navigator needs: a decoder that answers, a robot that shows frames and executes decisions. No ROS."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from edge_drafter.question import Reply
from spec_vlm_nav.motion import Outcome, PlanarPose
from speculation.language.prompts import NavigationAction, Vocabulary
from speculation.wire import Jpegs


class State(Enum):
    """What the robot is at, for people."""

    THINKING = "thinking"
    MOVING = "moving"
    HOLDING = "holding"


@dataclass(frozen=True)
class Frame:
    """A camera frame as JPEG."""

    jpeg: bytes
    arrived: float
    """Time of its arrival by this machine's steady clock, seconds."""
    age: float
    """Its age when it arrived, seconds."""
    stamp: Any
    """Header of its message, for messages that refer to the frame."""
    place: PlanarPose | None = None
    """Where the robot was when it was taken, by odometry; None where that is not known."""


@dataclass(frozen=True)
class Decision:
    """What the robot is to do, from committed tokens."""

    step: int
    """Counts from 0 within a goal. A second decision of one step is the same action, further known."""
    action: NavigationAction | None
    """None: HOLD."""
    complete: bool = True
    """False while the rest of the answer is still being written."""
    frame: Frame | None = None
    """What was looked at; None for a HOLD of the robot's own."""
    reply: Reply | None = None
    """The whole answer; None before it is complete, and for a HOLD of the robot's own."""
    alone: bool = False
    """Whether the draft model decided without the verifier."""
    speed_scale: float = 1.0
    in_motion: bool = False
    """Whether the frame was taken while the robot moved."""
    action_s: float | None = None
    """Seconds from the question to the action's kind; None where it was known with the whole answer only."""


@dataclass(frozen=True)
class Execution:
    """How the executor stands with a decision."""

    outcome: Outcome | None
    """RUNNING also while the executor has not taken up what it was sent last; None where a newer action took over."""
    moved: float = 0.0
    """Way in the commanded direction by odometry, metres or radians."""
    remaining: float = 0.0
    """Way that is left, metres or radians."""
    elapsed: float = 0.0
    """Seconds since the action began."""
    message: str = ""


class Question(Protocol):
    """One question under way, see `edge_drafter.question.Question`."""

    @property
    def committed(self) -> str:
        """The answer's committed text so far."""

    @property
    def guess(self) -> str:
        """What is expected behind it; may be wrong."""

    @property
    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""

    def result(self) -> Reply:
        """Return the answer. Raises VerifierLost, AnswerLate, Cancelled, or ValueError for a frame that is no image."""

    def cancel(self) -> None:
        """End it; returns at once."""


class Link(Protocol):
    """The way to the verifier, see `edge_drafter.link.ZmqLink`."""

    @property
    def state(self) -> str:
        """One of `edge_drafter.link.LinkState`."""

    @property
    def why(self) -> str:
        """The state as a sentence."""


class Decoder(Protocol):
    """Answers questions about frames."""

    @property
    def link(self) -> Link | None:
        """The way to the verifier; None where the draft model decides alone, as configured."""

    def objects(self, limit_s: float, *, mode: str | None = None) -> Vocabulary | None:
        """Return the objects that the model which answers in `mode` was trained to find, None where it takes any.

        Waits at most `limit_s` seconds for the verifier's list. Raises VerifierLost.
        """

    def ask(self, prompt: str, jpeg: Jpegs, deadline_s: float, mode: str | None = None) -> Question:
        """Begin to answer a question about one frame or several, and return at once."""


class RobotInterface(Protocol):
    """What the navigator needs of the robot: frames, actions, reports."""

    def frame_after(self, moment: float) -> Frame | None:
        """Return the newest frame if it was taken after `moment`, is fresh and is a picture, else None."""

    def camera_problem(self) -> str:
        """Return in a sentence what is wrong with the camera, as far as it is known; empty where nothing is known."""

    def place(self) -> PlanarPose | None:
        """Return where the robot is by odometry, None where that is not known."""

    def understood(self, instruction: str) -> None:
        """Show what a model with a list of objects is asked to find, empty for a model that takes any instruction."""

    def asked(self, prompt: str, frame: Frame) -> None:
        """Publish the prompt about a frame, before the model gets it."""

    def act(self, decision: Decision) -> None:
        """Publish a decision."""

    def execution(self, step: int) -> Execution | None:
        """Return how the executor stands with the newest decision of `step`, None while it has not taken up any."""

    def executor_silence(self) -> float:
        """Return the seconds since the executor's last message."""

    def report(self, state: State, reason: str = "") -> None:
        """Give feedback: what the robot is at, and why it holds."""

    def writing(self, answer: str, guess: str) -> None:
        """Give feedback: the running answer's committed text, and what is expected behind it."""
