"""What one step costs and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from speculation.sampling import GREEDY, MAX_KEY, SamplingSettings
from speculation.wire import FaultCode

EDGE_STAGES = ("prefill_s", "draft_s", "predraft_s", "wait_s")
"""Fields of `DecodingStats`: where the edge's time goes; they do not overlap."""
CLOUD_STAGES = ("server_prefill_s", "server_compute_s", "server_queue_s")
"""Where the verifier's time goes, while the edge drafts or waits."""


@dataclass(frozen=True)
class StepRequest:
    """One question about one frame.

    step: number of the step on the wire; grows with every request of a session, also for a resumed answer.
    eos: tokens that end an answer (the target's, from `Welcome`). committed: the answer so far, after an interruption.
    deadline_s: seconds that this request may take; None waits as long as the link lives.
    sampling: how tokens are drawn, as the session's Hello said. key: names the answer's random draws; a question that
    is taken up again keeps it, and two answers are the same where prompt, image, settings and key are.
    """

    step: int
    prompt: str
    jpeg: bytes
    eos: tuple[int, ...]
    max_tokens: int = 128
    deadline_s: float | None = None
    committed: tuple[int, ...] = ()
    sampling: SamplingSettings = GREEDY
    key: int = 0

    def __post_init__(self) -> None:
        if not self.eos:
            raise ValueError("eos is empty; give the tokens that end an answer")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give at least 1")
        if not 0 <= self.key <= MAX_KEY:
            raise ValueError(f"key is {self.key}; give 0 to 2^63 - 1")


@dataclass
class DecodingStats:
    """Counts and seconds of one step. Bytes are message payloads; times are this machine's, or durations by the server.

    hits / misses: commits that landed on a full, unspent draft (nothing had to be drafted before sending) / did not.
        Where gamma is chosen by a rule, four tokens are a full draft here.
    early_hits: hits whose landing an exit had named, by the first exit layer that named it.
    sent_ahead: places behind which a draft left before their commit. ahead_hits: hits on such a draft: no bubble.
    abandoned: draft forwards that a commit made useless and that were given up half-way.
    wasted_forwards, wasted_s: draft forwards, and their time, that proposed tokens that were never committed (WDT).
    draft_s and predraft_s: draft forwards while no verification ran / while one ran. wait_s: idle at the link.
    first_commit_s: request to first committed token (TTFT).
    fetches: times that a rejected token's successor could not be drawn without the tail of the target's distribution.
    gamma: draft tokens per verification at the step's end. estimated_*: what the controller then made of draft
        forwards, target forwards, round trip (seconds) and a draft token's chance; None before the first sample.
    """

    mode: str = ""
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    hits: int = 0
    misses: int = 0
    early_received: int = 0
    early_hits: dict[int, int] = field(default_factory=dict)
    draft_forwards: int = 0
    wasted_forwards: int = 0
    wasted_s: float = 0.0
    cloud_passes: int = 0
    sent_ahead: int = 0
    ahead_hits: int = 0
    abandoned: int = 0
    resent: int = 0
    fetches: int = 0
    interruptions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    predraft_s: float = 0.0
    wait_s: float = 0.0
    first_commit_s: float | None = None
    total_s: float = 0.0
    server_queue_s: float = 0.0
    server_compute_s: float = 0.0
    server_prefill_s: float = 0.0
    gamma: int = 0
    estimated_draft_s: float | None = None
    estimated_verify_s: float | None = None
    estimated_rtt_s: float | None = None
    estimated_acceptance: float | None = None

    @property
    def tau(self) -> float:
        """Tokens committed per verification; 0 before the first."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def hit_rate(self) -> float:
        """Hits / (hits + misses); 0 before the first."""
        judged = self.hits + self.misses
        return self.hits / judged if judged else 0.0

    @property
    def per_token_s(self) -> float:
        """Seconds per committed token."""
        return self.total_s / self.tokens if self.tokens else 0.0

    def add(self, other: DecodingStats, after_s: float = 0.0) -> None:
        """Add the figures of a part of the same step, begun `after_s` after it; the first commit stays the first."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for layer, count in other.early_hits.items():
            self.early_hits[layer] = self.early_hits.get(layer, 0) + count
        if self.first_commit_s is None and other.first_commit_s is not None:
            self.first_commit_s = after_s + other.first_commit_s
        self.gamma = other.gamma
        for name in ESTIMATES:
            if getattr(other, name) is not None:
                setattr(self, name, getattr(other, name))


ESTIMATES = ("estimated_draft_s", "estimated_verify_s", "estimated_rtt_s", "estimated_acceptance")
"""Fields of `DecodingStats`: the controller's view at the end."""
_SUMMED = tuple(
    name
    for name in DecodingStats.__dataclass_fields__
    if name not in ("mode", "early_hits", "first_commit_s", "gamma", *ESTIMATES)
)


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


class StepInterrupted(RuntimeError):
    """A step ended early. `committed` holds what was verified; `BeginStep.committed` takes it up again.

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
