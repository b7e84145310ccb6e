"""Request: what a robot asks of its verifier with one `BeginStep`."""

from __future__ import annotations

from dataclasses import dataclass

from speculation.sampling import GREEDY, SamplingScheme
from speculation.service_classes import INTERACTIVE, ServiceClass
from speculation.wire import TRACE_BYTES, BeginStep, Idle, begin_digest


@dataclass(frozen=True)
class Request:
    """A request is what was asked, without prompt and frames.

    A robot that comes back asks again, so a step's request is replaced. Times are seconds on the server's clock.
    """

    number: int
    """Number that the robot gave the step."""
    index: int
    """Row of the engine that holds the step's keys and values; a session has the same one from step to step."""
    max_tokens: int
    key: int
    """Key of the step's random draws."""
    idle: Idle
    """What the verifier does while no draft is at hand."""
    early: bool
    """Whether early tokens are of use to the robot."""
    deadline: float
    """When the answer is worth nothing any more."""
    round_trip_s: float
    self_draft: int
    """Tokens that the draft model beside the target proposes for each pass; 0: the robot drafts."""
    self_depth: int
    """Levels of the tree that these make; 0: a chain."""
    features: bool
    """Whether the robot continues its drafts from the target's features."""
    trace: bytes
    sampling: SamplingScheme = GREEDY
    service_class: ServiceClass = INTERACTIVE

    @classmethod
    def of(
        cls,
        begin: BeginStep,
        index: int = 0,
        now: float = 0.0,
        sampling: SamplingScheme = GREEDY,
        service_class: ServiceClass = INTERACTIVE,
    ) -> Request:
        """Return what a message asks for that came now. Sampling and class are its session's."""
        return cls(
            begin.step, index, begin.max_tokens, begin.key, begin.idle, begin.early, now + begin.time_left,
            begin.round_trip_s, begin.self_draft, begin.self_depth, begin.features, begin.trace, sampling,
            service_class,
        )  # fmt: skip

    @property
    def trace_id(self) -> str:
        """The robot's trace id, 32 hexadecimal digits; empty where it gave none."""
        return self.trace.hex() if len(self.trace) == TRACE_BYTES else ""

    def is_same_question(self, other: Request) -> bool:
        """Whether two requests of one digest are one question under two numbers: its trace, and who drafts for it."""
        mine, theirs = ((each.trace, each.self_draft, each.self_depth, each.features) for each in (self, other))
        return bool(self.trace) and mine == theirs


def empty_digest(begin: BeginStep, sampling: SamplingScheme) -> bytes:
    """Return the digest of a step's empty answer. It reads the whole frame: once for each message is enough."""
    return begin_digest(begin.prompt, begin.jpeg, sampling.text, begin.key, begin.grammar, begin.schema)
