"""Measures what one step costs and where its time goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_drafter.tree import Node
from speculation.wire import Commit

EDGE_STAGES = ("prefill_s", "draft_s", "predraft_s", "wait_s")
"""Fields of `DecodingStats`: where the edge's time goes; they do not overlap."""
CLOUD_STAGES = ("server_prefill_s", "server_compute_s", "server_queue_s")
"""Where the verifier's time goes, while the edge drafts or waits."""


@dataclass
class DecodingStats:
    """Counts and seconds of one step. Bytes are message payloads; times are durations on this machine or the server."""

    mode: str = ""
    tokens: int = 0
    rounds: int = 0
    """How many commits came."""
    drafted: int = 0
    """Draft tokens sent; of several drafts for one place the largest counts."""
    accepted: int = 0
    """Draft tokens that were committed."""
    hits: int = 0
    """Commits that landed on a full, unspent draft: nothing had to be drafted before sending. Where gamma is chosen by
    a rule, four tokens are a full draft here."""
    misses: int = 0
    early_received: int = 0
    """Early tokens that arrived before their verification was decided."""
    early_hits: dict[int, int] = field(default_factory=dict)
    """Hits whose place an exit had named, by the first exit layer that named it."""
    draft_forwards: int = 0
    wasted_forwards: int = 0
    """Draft forwards of whose proposals, the likeliest token behind each leaf, none was committed, or that were given
    up."""
    wasted_s: float = 0.0
    """The time of these forwards (WDT)."""
    cloud_passes: int = 0
    """Target forwards."""
    sent_ahead: int = 0
    """Places behind which a draft was sent before their commit."""
    ahead_hits: int = 0
    """Hits on such a draft: no bubble."""
    abandoned: int = 0
    """Draft forwards that were given up between layers."""
    resent: int = 0
    """Drafts that were repeated."""
    fetches: int = 0
    """Times that a rejected token's successor could not be drawn without the tail of the target's distribution."""
    interruptions: int = 0
    busy: int = 0
    """How many of the interruptions were a full verifier that turned the step away."""
    bytes_up: int = 0
    bytes_down: int = 0
    prefill_s: float = 0.0
    """Reading image and prompt on the edge."""
    draft_s: float = 0.0
    """Draft forwards while no verification ran."""
    predraft_s: float = 0.0
    """Draft forwards while one ran."""
    wait_s: float = 0.0
    """Idle at the link."""
    cpu_s: float = 0.0
    """Processor time of the edge's process, all threads, from the request to the answer; on virtual time the declared
    time of its forwards, prefill among them."""
    first_commit_s: float | None = None
    """Request to first committed token (TTFT)."""
    total_s: float = 0.0
    server_queue_s: float = 0.0
    server_compute_s: float = 0.0
    server_prefill_s: float = 0.0
    gamma: int = 0
    """Draft tokens per verification at the step's end."""
    estimated_draft_s: float | None = None
    """What `AcceptanceStats` estimated at the step's end, this and the next three; None before the first sample."""
    estimated_verify_s: float | None = None
    estimated_rtt_s: float | None = None
    estimated_acceptance: float | None = None

    @property
    def tau(self) -> float:
        """Tokens committed per verification; 0 before the first."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def per_token_s(self) -> float:
        """Seconds per committed token."""
        return self.total_s / self.tokens if self.tokens else 0.0

    def add_forward(self, seconds: float, *, verifying: bool, abandoned: bool) -> None:
        """Count a draft forward, run while a verification was `verifying` or not: as wasted until it is `used`."""
        self.draft_forwards += 1
        self.wasted_forwards += 1
        self.wasted_s += seconds
        if verifying:
            self.predraft_s += seconds
        else:
            self.draft_s += seconds
        self.abandoned += abandoned

    def used(self, nodes: Iterable[Node]) -> None:
        """Count the forwards that proposed these nodes, which were committed, as used."""
        for node in nodes:
            forward = node.proposed.forward if node.proposed is not None else None
            if forward is not None and not forward.used:
                forward.used = True
                self.wasted_forwards -= 1
                self.wasted_s -= forward.seconds

    def add_passes(self, commit: Commit) -> None:
        """Count the target forwards behind a commit, and the verifier's seconds."""
        self.cloud_passes += commit.passes
        self.server_queue_s += commit.queue_s
        self.server_compute_s += commit.compute_s
        self.server_prefill_s += commit.prefill_s

    def add_hit(self, ahead: bool, layers: tuple[int, ...]) -> None:
        """Count a hit, on a draft that was sent ahead or not, at a place that exits after `layers` had named."""
        self.hits += 1
        self.ahead_hits += ahead
        if layers:
            self.early_hits[layers[0]] = self.early_hits.get(layers[0], 0) + 1

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
