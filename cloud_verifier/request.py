"""Request: what a robot asks of its verifier with one `BeginStep`."""

from __future__ import annotations

from msgspec.structs import asdict

from speculation.sampling import GREEDY, SamplingScheme
from speculation.service_classes import INTERACTIVE, ServiceClass
from speculation.wire import TRACE_BYTES, BeginStep, begin_digest


class Request(BeginStep, frozen=True, kw_only=True):
    """A request is what was asked, without prompt, frames and the tokens that came along.

    A robot that comes back asks again, so a step's request is replaced. Times are seconds on the server's clock.
    """

    index: int
    """Row of the engine that holds the step's keys and values; a session has the same one from step to step."""
    deadline: float
    """When the answer is worth nothing any more."""
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
        asked = asdict(begin) | {"prompt": "", "jpeg": b"", "committed": [], "hints": []}
        return cls(**asked, index=index, deadline=now + begin.time_left, sampling=sampling, service_class=service_class)

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
