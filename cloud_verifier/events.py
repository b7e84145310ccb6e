"""Events tell those who keep figures, logs, promises and traces what happens to steps. Times are seconds on the
server's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cloud_verifier.sessions import Session
from cloud_verifier.step import Step
from speculation.acceptance import Verdict
from speculation.wire import Commit


@dataclass(frozen=True)
class Begun:
    """A robot began a step."""

    step: Step
    session: Session
    now: float


@dataclass(frozen=True)
class Granted:
    """A step got its memory."""

    step: Step
    prompt: int
    """Tokens of its prompt, with the answer's so far."""
    computed: int
    """Tokens of these that its row does not share with others."""
    now: float


@dataclass(frozen=True)
class Prefilled:
    """A part of a step's prefill was fed, or its image was encoded."""

    step: Step
    tokens: int
    start: float
    now: float


@dataclass(frozen=True)
class ExitJudged:
    """An exit has judged a step's pass, and its robot hears of it."""

    step: Step
    layer: int
    verdict: Verdict


@dataclass(frozen=True)
class Committed:
    """A step's pass is done."""

    step: Step
    verdict: Verdict
    commit: Commit
    since: float
    """When the step's commit before left or, before the first, its prefill was done."""
    now: float


@dataclass(frozen=True)
class Ended:
    """A step is over."""

    step: Step
    how: str
    """One of `monitoring.series.REASONS`."""
    now: float
    session: Session | None = None
    """Session of the step; None where the log says already what ended it."""
    why: str = ""
    """What ended it in other words."""


@dataclass(frozen=True)
class Deferred:
    """A step ended before it began: its robot was asked to come back later."""

    step: Step


@dataclass(frozen=True)
class Worked:
    """The models worked, for all of the steps that run."""

    kind: str
    """One of `monitoring.series.WORK`."""
    start: float
    now: float
    tokens: int = 0
    """Tokens that a target forward was fed; 0 for other work, and for a forward that was given up."""
    about: Mapping[str, int] = field(default_factory=dict)
    """What a trace says of it."""


Event: TypeAlias = Begun | Granted | Prefilled | ExitJudged | Committed | Ended | Deferred | Worked
Emit: TypeAlias = Callable[[Event], None]


class Events:
    """Hands each event to all subscribers, in their order, in the server's thread."""

    def __init__(self, *subscribers: Emit) -> None:
        self._subscribers = subscribers

    def emit(self, event: Event) -> None:
        """Let the subscribers take an event."""
        for take in self._subscribers:
            take(event)
