"""Exit queue: which early token leaves next, and when.

Sent as they come, early tokens would wait in the operating system's buffer, where nothing can be reordered or
withdrawn. So they wait here: at most `rate` per second and session leave, in bursts of `burst`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum

from speculation.wire import EarlyTokens

_FULL = 1.0 - 1e-9
"""Adding up refills rounds; a token short by less than this is a token."""


class QueuePolicy(str, Enum):
    """Which waiting early token leaves first (Early Exits, Table 7).

    `priority`: the most confident; a deeper layer's verdict replaces the waiting shallower ones of its round.
    `fifo`, `random`: the paper's plain queues, for comparison; nothing is replaced.
    """

    PRIORITY = "priority"
    FIFO = "fifo"
    RANDOM = "random"


@dataclass
class _Lane:
    """One session: what waits, what left last in the current round, and the tokens of its bucket."""

    bucket: float
    filled_at: float
    waiting: list[tuple[int, EarlyTokens]] = field(default_factory=list)
    round: tuple[int, int] | None = None
    sent: set[tuple[int, int]] = field(default_factory=set)
    last_sent: tuple[int, int] | None = None


class ExitQueue:
    """Early tokens of all sessions. `rate` is in messages per second and session, `burst` in messages."""

    def __init__(
        self, policy: QueuePolicy = QueuePolicy.PRIORITY, rate: float = 200.0, burst: int = 4, seed: int = 0
    ) -> None:
        if rate <= 0.0 or burst < 1:
            raise ValueError(f"exit queue: rate {rate} and burst {burst} must be positive")
        self.policy = policy
        self.rate = rate
        self.burst = burst
        self.sent = self.dropped = 0
        self._random = random.Random(seed)
        self._lanes: dict[int, _Lane] = {}
        self._count = 0

    def push(self, session: int, early: EarlyTokens, now: float) -> None:
        """Queue an early token; drop it where its round is over or already heard the same verdict."""
        lane = self._lane(session, now)
        key = (early.step, early.round)
        if lane.round != key:
            self._forget(lane)
            lane.round = key
        if self.policy is QueuePolicy.PRIORITY:
            self.dropped += len(lane.waiting)
            lane.waiting.clear()
            repeated = lane.last_sent == (early.node, early.token)
        else:
            verdict = (early.node, early.token)
            repeated = verdict in lane.sent or any(verdict == (e.node, e.token) for _, e in lane.waiting)
        if repeated:
            self.dropped += 1
            return
        lane.waiting.append((self._count, early))
        self._count += 1

    def overtake(self, session: int) -> None:
        """A commit or a new step made everything that waits for `session` worthless."""
        if session in self._lanes:
            self._forget(self._lanes[session])

    def close(self, session: int) -> None:
        """Forget a session."""
        self._lanes.pop(session, None)

    def pop(self, now: float) -> tuple[int, EarlyTokens] | None:
        """Return the early token that may leave now, and its session; None where none may."""
        candidates = []
        for session, lane in self._lanes.items():
            if lane.waiting:
                self._refill(lane, now)
                if lane.bucket >= _FULL:
                    candidates += [(order, early, session) for order, early in lane.waiting]
        if not candidates:
            return None
        order, early, session = self._choose(candidates)
        lane = self._lanes[session]
        lane.waiting.remove((order, early))
        lane.bucket -= 1.0
        self.sent += 1
        lane.last_sent = (early.node, early.token)
        lane.sent.add(lane.last_sent)
        return session, early

    def next_time(self, now: float) -> float | None:
        """Return when `pop` will next return something (not before `now`); None where nothing waits."""
        times = []
        for lane in self._lanes.values():
            if lane.waiting:
                self._refill(lane, now)
                times.append(now if lane.bucket >= _FULL else now + (1.0 - lane.bucket) / self.rate)
        return min(times, default=None)

    def _choose(self, candidates: list[tuple[int, EarlyTokens, int]]) -> tuple[int, EarlyTokens, int]:
        if self.policy is QueuePolicy.PRIORITY:
            return min(candidates, key=lambda c: (-c[1].confidence, c[0]))
        candidates.sort(key=lambda c: c[0])
        return candidates[0] if self.policy is QueuePolicy.FIFO else self._random.choice(candidates)

    def _lane(self, session: int, now: float) -> _Lane:
        if session not in self._lanes:
            self._lanes[session] = _Lane(bucket=float(self.burst), filled_at=now)
        return self._lanes[session]

    def _refill(self, lane: _Lane, now: float) -> None:
        lane.bucket = min(float(self.burst), lane.bucket + max(0.0, now - lane.filled_at) * self.rate)
        lane.filled_at = max(now, lane.filled_at)

    def _forget(self, lane: _Lane) -> None:
        self.dropped += len(lane.waiting)
        lane.waiting.clear()
        lane.sent.clear()
        lane.last_sent = None
        lane.round = None
