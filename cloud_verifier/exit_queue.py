"""Exit queue: which early token leaves next, and when.

Sent as they come, early tokens would wait in the operating system's buffer, where nothing can be reordered or
withdrawn. So they wait here: at most `rate` per second and session leave, in bursts of `burst`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from cloud_verifier.limits import Rate
from speculation.wire import EarlyTokens

_SENT = -math.inf
"""Key of a verdict that has left: nothing about it waits behind it."""

_Verdict: TypeAlias = tuple[int, int]
"""Draft node and the token after it."""


class QueuePolicy(str, Enum):
    """Which waiting early token leaves first (Early Exits, Table 7).

    `priority`: the most confident (Algorithm 2, queue Q_e). `fifo`: the oldest.
    """

    PRIORITY = "priority"
    FIFO = "fifo"


class _Entry(NamedTuple):
    """A waiting early token; the smallest leaves first. No two have the same `order`."""

    key: float
    order: int
    early: EarlyTokens


@dataclass
class _Lane:
    """One session: a heap of what waits.

    `keys` has the key of every verdict of the round that waits, or `_SENT`. An entry with another key is out of date;
    it is dropped when it reaches the head.
    """

    waiting: list[_Entry] = field(default_factory=list)
    round: tuple[int, int] | None = None
    keys: dict[_Verdict, float] = field(default_factory=dict)


class ExitQueue:
    """Early tokens of all sessions. `rate` is in messages per second and session, `burst` in messages.

    A verdict leaves once in a round. Every early token that was pushed is in the end sent or dropped, and counted so.
    """

    def __init__(self, policy: QueuePolicy, rate: float, burst: int) -> None:
        self.policy = policy
        self._rate = Rate.counted(rate, burst)
        self.sent = self.dropped = 0
        self._lanes: dict[int, _Lane] = {}
        self._count = 0

    def push(self, session: int, early: EarlyTokens) -> None:
        """Queue an early token; drop it where its verdict has left, or waits already and would not leave sooner."""
        lane = self._lanes.setdefault(session, _Lane())
        round = (early.step, early.round)
        if lane.round != round:
            self._forget(lane)
            lane.round = round
        verdict = (early.node, early.token)
        key = 0.0 if self.policy is QueuePolicy.FIFO else -early.confidence
        if verdict in lane.keys and key >= lane.keys[verdict]:
            self.dropped += 1
            return
        lane.keys[verdict] = key
        heapq.heappush(lane.waiting, _Entry(key, self._count, early))
        self._count += 1

    def overtake(self, session: int) -> None:
        """Drop what waits for `session`: a commit or a new step made it useless."""
        if session in self._lanes:
            self._forget(self._lanes[session])

    def close(self, session: int) -> None:
        """Drop a session."""
        self._lanes.pop(session, None)

    def pop(self, now: float) -> tuple[int, EarlyTokens] | None:
        """Return the early token that may leave now, and its session; None where none may."""
        heads = []
        for session, lane in self._lanes.items():
            head = self._head(lane)
            if head is not None and not self._rate.wait(session, now):
                heads.append((head, session))
        if not heads:
            return None
        (_, _, early), session = min(heads)
        lane = self._lanes[session]
        heapq.heappop(lane.waiting)
        self._rate.use(session, 1.0, now)
        self.sent += 1
        lane.keys[early.node, early.token] = _SENT
        return session, early

    def next_time(self, now: float) -> float | None:
        """Return when `pop` will next return something (not before `now`); None where nothing waits."""
        waiting = (session for session, lane in self._lanes.items() if self._head(lane) is not None)
        return min((now + self._rate.wait(session, now) for session in waiting), default=None)

    def _head(self, lane: _Lane) -> _Entry | None:
        """Return the lane's next early token, after dropping those before it that are out of date."""
        while lane.waiting:
            head = lane.waiting[0]
            if lane.keys[head.early.node, head.early.token] == head.key:
                return head
            heapq.heappop(lane.waiting)
            self.dropped += 1
        return None

    def _forget(self, lane: _Lane) -> None:
        self.dropped += len(lane.waiting)
        lane.waiting.clear()
        lane.keys.clear()
        lane.round = None
