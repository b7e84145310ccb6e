"""What the bridge must know of a robot: its requests, its answers, its limits. No ROS.

A robot is one file in `robots/` that implements `Robot`. Its state comes as answers to requests and as
nav_msgs/Odometry on `odom`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spec_vlm_nav.safety import Limits, Velocity

R = TypeVar("R")


class Topic(NamedTuple):
    """A topic of the robot's own."""

    name: str
    """As the robot has it in the root namespace; the bridge uses it relative to its own."""
    kind: str
    """Message type, e.g. unitree_api/msg/Request."""
    argument: str
    """The launch argument that names it, e.g. request_topic."""


class Answer(NamedTuple):
    """The robot's answer to one request."""

    identity: int
    """Of the request."""
    problem: str = ""
    """Why the robot refused, in a sentence; empty for success."""


class Robot(Protocol[R]):
    """A kind of robot, without state; `R` is its request. A request has an identity, which its answer carries back."""

    @property
    def topics(self) -> Sequence[Topic]:
        """All of the robot's own topics that the bridge uses."""
        ...

    @property
    def requests(self) -> Topic:
        """Where requests are sent."""
        ...

    @property
    def answers(self) -> Topic:
        """Where the robot answers."""
        ...

    @property
    def odom_topic(self) -> str:
        """Its nav_msgs/Odometry."""
        ...

    @property
    def camera_topic(self) -> str:
        """Its sensor_msgs/CompressedImage of the front camera, JPEG."""
        ...

    @property
    def fastest(self) -> Velocity:
        """Largest speeds that a configuration may ask for, all positive."""
        ...

    @property
    def stand_up(self) -> Sequence[Callable[[int], R]]:
        """What makes a request of an identity, for each that the robot must confirm, in turn, before it may move.

        After the first is confirmed the bridge waits for the parameter `stand_up_s`.
        """
        ...

    def stop(self, identity: int) -> R:
        """Return the request to stand still; the robot answers it."""
        ...

    def move(self, velocity: Velocity, limits: Limits, identity: int) -> R:
        """Return the request to move within `limits`; it is sent at 20 Hz. Raises ValueError for NaN and infinity."""
        ...

    def write(self, request: R, message: Any) -> None:
        """Fill an empty message of the type of `requests`."""
        ...

    def read(self, message: Any) -> Answer:
        """Return what a message of the type of `answers` means."""
        ...


class Confirmed(Generic[R]):
    """A request that is repeated until the robot answers it: requests are lost before discovery is through.

    `make` builds it for an identity, `next_identity` gives unique ones; time is given (steady clock, seconds).
    """

    def __init__(self, make: Callable[[int], R], next_identity: Callable[[], int], retry_s: float) -> None:
        self.done = False
        self._make, self._next_identity, self._retry_s = make, next_identity, retry_s
        self._identities: set[int] = set()
        self._sent_at = -math.inf

    def due(self, now: float) -> R | None:
        """Return the request when it must be sent (again), else None."""
        if self.done or now - self._sent_at < self._retry_s:
            return None
        self._sent_at = now
        identity = self._next_identity()
        self._identities.add(identity)
        return self._make(identity)

    def answered(self, answer: Answer) -> None:
        """Take an answer; only success to one of this request's identities confirms it."""
        self.done = self.done or (not answer.problem and answer.identity in self._identities)

    def reopen(self) -> None:
        """Repeat it although it was answered: the robot confirmed it and did something else."""
        self.done = False
