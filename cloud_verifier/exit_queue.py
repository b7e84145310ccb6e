"""Exit queue: which early token leaves next, and when.

Sent as they come, early tokens would wait in the operating system's buffer, where nothing can be reordered or
withdrawn. So they wait here: at most `rate` per second and session leave, in bursts of `burst`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from cloud_verifier.limits import Rate
from speculation.wire import EarlyTokens

_Verdict: TypeAlias = tuple[int, int]
"""Draft node and the token after it."""


class QueuePolicy(str, Enum):
    """Which waiting early token leaves first (Early Exits, Table 7).

    `priority`: the most confident (Algorithm 2, queue Q_e). `fifo`: the oldest.
    """

    PRIORITY = "priority"
    FIFO = "fifo"


@dataclass
class _Lane:
    """One session's early tokens about a round of one of its steps; there is one for each exit at most."""

    round: tuple[int, int]
    waiting: dict[_Verdict, tuple[float, int, EarlyTokens]] = field(default_factory=dict)
    """Those that wait, by their verdict; the smallest leaves first: by its key, then by when it came."""
    left: set[_Verdict] = field(default_factory=set)
    """Verdicts that were sent."""


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
        lane, round = self._lanes.get(session), (early.step, early.round)
        if lane is None or lane.round != round:
            self.overtake(session)
            lane = self._lanes[session] = _Lane(round)
        verdict = (early.node, early.token)
        key = 0.0 if self.policy is QueuePolicy.FIFO else -early.confidence
        rival = lane.waiting.get(verdict)
        if verdict in lane.left or (rival is not None and key >= rival[0]):
            self.dropped += 1
            return
        self.dropped += rival is not None
        lane.waiting[verdict] = (key, self._count, early)
        self._count += 1

    def overtake(self, session: int) -> None:
        """Drop what waits for `session`: a commit, a new step or the session's end made it useless."""
        lane = self._lanes.pop(session, None)
        if lane is not None:
            self.dropped += len(lane.waiting)

    def pop(self, now: float) -> tuple[int, EarlyTokens] | None:
        """Return the early token that may leave now, and its session; None where none may."""
        ready = (session for session in self._waiting if not self._rate.wait(session, now))
        heads = [(min(self._lanes[session].waiting.values()), session) for session in ready]
        if not heads:
            return None
        (_, _, early), session = min(heads)
        lane, verdict = self._lanes[session], (early.node, early.token)
        del lane.waiting[verdict]
        lane.left.add(verdict)
        self._rate.use(session, 1.0, now)
        self.sent += 1
        return session, early

    def next_time(self, now: float) -> float | None:
        """Return when `pop` will next return something (not before `now`); None where nothing waits."""
        return min((now + self._rate.wait(session, now) for session in self._waiting), default=None)

    @property
    def _waiting(self) -> list[int]:
        return [session for session, lane in self._lanes.items() if lane.waiting]
