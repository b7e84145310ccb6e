"""One question to the drafter: what is asked, and what it ends in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edge_drafter.stats import DecodingStats
from speculation.language.grammar import Automaton
from speculation.sampling import GREEDY, MAX_KEY, SamplingScheme
from speculation.wire import FaultCode, Grammar, Jpegs


@dataclass(frozen=True)
class StepRequest:
    """One question about one frame or several. Raises ValueError, naming the field, for values that cannot be."""

    step: int
    """Number of the step on the wire; grows with every request of a session, also for a resumed answer."""
    prompt: str
    jpeg: Jpegs
    eos: tuple[int, ...]
    """Tokens that end an answer (the target's, from `Welcome`)."""
    max_tokens: int = 128
    deadline_s: float | None = None
    """Seconds that this request may take; None waits as long as the link lives."""
    committed: tuple[int, ...] = ()
    """The answer so far, after an interruption."""
    sampling: SamplingScheme = GREEDY
    """How tokens are sampled, as the session's Hello declared."""
    key: int = 0
    """Names the answer's random draws. A resumed question keeps it; two answers are the same where prompt, image,
    settings and key are."""
    trace: bytes = b""
    """Id of the trace that joins both sides' notes of the question, see `BeginStep.trace`; a resumed one keeps it."""
    grammar: Automaton | None = None
    """What the answer must look like; None: it is free. A resumed question keeps it."""

    @property
    def grammar_name(self) -> Grammar:
        """See `BeginStep.grammar`."""
        return Grammar.FREE if self.grammar is None else self.grammar.name

    def __post_init__(self) -> None:
        if not self.eos:
            raise ValueError("eos is empty; give the tokens that end an answer")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give at least 1")
        if not 0 <= self.key <= MAX_KEY:
            raise ValueError(f"key is {self.key}; give 0 to 2^63 - 1")


@dataclass(frozen=True)
class StepResult:
    """The answer's tokens, ending in an eos token or cut at max_tokens, and what they cost."""

    tokens: tuple[int, ...]
    stats: DecodingStats


class Interruption(Enum):
    """Why a step ended without its answer."""

    LINK_LOST = "link lost"
    DEADLINE = "deadline"
    REFUSED = "refused"
    CONTRADICTION = "contradiction"
    UNREADABLE = "the edge cannot read the frame"
    FAILED = "the edge failed"
    CANCELLED = "cancelled"


class StepInterrupted(RuntimeError):
    """A step ended early. `committed` holds what was verified; `BeginStep.committed` resumes the step there.

    `code` is the verifier's, where it sent a `Fault`.
    """

    def __init__(
        self,
        cause: Interruption,
        message: str,
        committed: tuple[int, ...],
        stats: DecodingStats,
        code: FaultCode | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause
        self.committed = committed
        self.stats = stats
