"""What the bridge must know of a robot: its requests, its answers, its state, its limits. No ROS.

A robot is one file in `robots/` that implements `Robot`. What it does shows in its answers to requests, in
nav_msgs/Odometry on `odom` and, where it has one, in a state topic of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spec_vlm_nav.safety import Limits, Velocity

R = TypeVar("R")
LATEST = 64
"""Repetitions whose answers count: a stop may be repeated for hours."""


class Topic(NamedTuple):
    """A topic of the robot's own."""

    name: str
    """Its name in the root namespace, as the robot has it; the bridge uses it relative to its own."""
    kind: str
    """Message type, e.g. unitree_api/msg/Request."""
    argument: str
    """The launch argument that names it, e.g. request_topic."""


class Service(NamedTuple):
    """A service of the robot's, as a pair of topics."""

    requests: Topic
    answers: Topic


class Answer(NamedTuple):
    """The robot's answer to one request."""

    identity: int
    """Identity of the request."""
    problem: str = ""
    """Why the robot refused, in a sentence; empty for success."""
    unready: bool = False
    """Whether it refused because it does not stand, or because its motion service was started anew."""


class Posture(Enum):
    """Whether the robot can walk."""

    UNKNOWN = "not known"
    STANDS = "stands"
    """It obeys velocities."""
    DOWN = "does not stand"
    """It lies, sits or has its joints locked: it obeys no velocity before it was made to stand."""
    DAMPED = "damped"
    """Its joints are limp, which on a robot that stood only a person's remote control does."""


class RobotState(NamedTuple):
    """One message of the robot's state topic."""

    posture: Posture
    speed: float
    """Speed over the ground, m/s."""
    turn: float
    """Turn about its vertical, rad/s, counter-clockwise."""
    problem: str = ""
    """Why it obeys no velocity, in a sentence; empty where it does or where that is not known."""


class Robot(Protocol[R]):
    """A kind of robot, without state; `R` is its request. A request has an identity, which its answer carries back."""

    @property
    def topics(self) -> Sequence[Topic]:
        """All of the robot's own topics that the bridge uses."""

    @property
    def services(self) -> Sequence[Service]:
        """Where requests are sent and answered; all that a stop is sent to, whatever moves the robot."""

    @property
    def states(self) -> Topic | None:
        """Its state topic; None: it has none."""

    @property
    def remote(self) -> Topic | None:
        """Where it publishes its remote control's sticks and keys; None: nowhere."""

    @property
    def battery(self) -> Topic | None:
        """Where it publishes how much charge is left; None: nowhere."""

    @property
    def obstacles(self) -> Topic | None:
        """Its own sensor for the collision guard; None: it has none. Another sensor's topic may be remapped to it."""

    @property
    def odom_topic(self) -> str:
        """Topic of its nav_msgs/Odometry."""

    @property
    def camera_topic(self) -> str:
        """Topic of its front camera's sensor_msgs/CompressedImage, JPEG."""

    @property
    def fastest(self) -> Velocity:
        """Largest speeds that a configuration may ask for, all positive."""

    @property
    def motion_services(self) -> Sequence[str]:
        """The ways to drive it, the plainest first."""

    @property
    def stand_up(self) -> Sequence[Callable[[int], R]]:
        """What makes a request of an identity, for each that the robot must confirm, in turn, before it may move.

        After the first is confirmed the bridge waits for the parameter `stand_up_s`. Of a robot whose state shows
        that it stands only the last is asked, which must do no harm then.
        """

    @property
    def take_control(self) -> Sequence[Callable[[int], R]]:
        """What gives this bridge the motion service's velocities, asked for after `stand_up` and like it."""

    @property
    def give_control(self) -> Sequence[Callable[[int], R]]:
        """The requests that undo `take_control`, each of which the robot must confirm."""

    @property
    def stop_too(self) -> Sequence[Callable[[int], R]]:
        """Sent with every `stop` and not answered: for motion services that keep commands of their own."""

    def driven_by(self, motion_service: str) -> Robot[R]:
        """Return the robot with one of its `motion_services`. Raises ValueError for another."""

    def stop(self, identity: int) -> R:
        """Return the request to stand still; the robot answers it."""

    def move(self, velocity: Velocity, limits: Limits, identity: int, answered: bool = False) -> R:
        """Return the request to move within `limits`; it is sent 50 times a second, and few need be `answered`.

        Raises ValueError for NaN and infinity.
        """

    def service_of(self, request: R) -> Service:
        """Return which of `services` a request is for."""

    def write(self, request: R, message: Any) -> None:
        """Fill an empty message of the service's request type. Raises ValueError for what may never leave."""

    def read(self, service: Service, message: Any) -> Answer:
        """Return what an answer of one of `services` means."""

    def read_state(self, message: Any) -> RobotState:
        """Return what a message of `states` means."""

    def read_remote(self, message: Any) -> bool:
        """Return whether a message of `remote` shows that a person uses sticks or keys."""

    def read_battery(self, message: Any) -> float:
        """Return the charge that a message of `battery` shows, percent."""


class Confirmed(Generic[R]):
    """A request that is repeated until the robot answers it: requests are lost before discovery is through.

    `make` builds it for an identity, `next_identity` gives unique ones; time is given (steady clock, seconds).
    """

    def __init__(self, make: Callable[[int], R], next_identity: Callable[[], int], retry_s: float) -> None:
        self.done = False
        self._make, self._next_identity, self._retry_s = make, next_identity, retry_s
        self._identities = deque[int](maxlen=LATEST)
        self._sent_at = -math.inf

    @property
    def sent(self) -> bool:
        """Whether it was ever sent."""
        return bool(self._identities)

    def due(self, now: float) -> R | None:
        """Return the request when it must be sent (again), else None."""
        if self.done or now - self._sent_at < self._retry_s:
            return None
        self._sent_at = now
        identity = self._next_identity()
        self._identities.append(identity)
        return self._make(identity)

    def asked(self, answer: Answer) -> bool:
        """Return whether an answer is to this request."""
        return answer.identity in self._identities

    def answered(self, answer: Answer) -> None:
        """Take an answer; only success to one of this request's identities confirms it."""
        self.done = self.done or (not answer.problem and self.asked(answer))

    def reopen(self) -> None:
        """Repeat it although it was answered: the robot confirmed it and did something else."""
        self.done = False
