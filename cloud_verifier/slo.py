"""Whether promised speeds are kept, and what keeping them takes of the machine: what a cluster scales by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from cloud_verifier.events import Committed, Event
from cloud_verifier.limits import DecayingSum

HALF_LIFE_S = 10.0
"""What happened so long ago counts half."""
_RATE = math.log(2.0) / HALF_LIFE_S
"""A steady use a second is so much of what its decaying sum comes to."""


@dataclass(frozen=True)
class Standing:
    """A standing is how loaded a verifier is."""

    sessions: int
    """How many of them have a robot that is there."""
    memory: float
    """Share of its blocks that steps hold."""
    utilisation: float
    """Predicted seconds of work a second that its robots' classes ask for; above 1 it cannot keep them."""
    late: float
    """Share of commits of late that took the verifier longer than their class allows for their tokens."""
    draining: bool


class Membership(Protocol):
    """A verifier's place in a cluster."""

    def check_ticket(self, ticket: bytes, client: str) -> None:
        """Raise ValueError for a ticket that does not admit a client."""

    def report(self, standing: Standing) -> None:
        """Take how the verifier stands, which it says again and again; one that hangs does not."""


class SloAttainment:
    """Compares what commits took with what their classes allow. `now` is in seconds."""

    def __init__(self) -> None:
        self._commits, self._late = DecayingSum(HALF_LIFE_S), DecayingSum(HALF_LIFE_S)
        self._prefill, self._asked = DecayingSum(HALF_LIFE_S), DecayingSum(HALF_LIFE_S)

    def take(self, event: Event) -> None:
        """Enter a commit of a pass. What its robot took to draft is not the verifier's, and does not count."""
        if not isinstance(event, Committed):
            return
        commit, now = event.commit, event.now
        # Its `rest` is a token, too, which the robot draws out of it.
        tokens = len(commit.tokens) + (commit.rest is not None)
        allowed_s = tokens / event.step.request.service_class.tokens_per_s
        self._commits.add(1.0, now)
        self._late.add(float(commit.queue_s + commit.compute_s > allowed_s), now)
        self._prefill.add(commit.prefill_s, now)

    def asked(self, work: float, seconds: float, now: float) -> None:
        """Enter that so much work a second was asked for, for so many seconds."""
        self._asked.add(work * seconds, now)

    def late(self, now: float) -> float:
        """Return the share of late commits, 0 where there were none of late."""
        commits = self._commits.now(now)
        return min(1.0, self._late.now(now) / commits) if commits > 0.05 else 0.0

    def utilisation(self, now: float) -> float:
        """Return the work a second, prefills included."""
        return _RATE * (self._asked.now(now) + self._prefill.now(now))
