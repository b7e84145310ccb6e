"""Robots: what they draft, and when they send it. A robot knows of its answer only what it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from vlm_nav_evaluation.fleet.systems import Drafting
from vlm_nav_evaluation.fleet.trees import Path, best_tree
from vlm_nav_evaluation.fleet.workload import Request

_LATE = 1e-9
Kinds: TypeAlias = tuple[tuple[float, ...], ...]


class Drafter(Protocol):
    """A draft model at work behind the end of an answer. Times are seconds on the fleet's clock."""

    def begin(self, request: Request, now: float) -> None:
        """Start on the empty answer."""

    def commit(self, tokens: Sequence[int], now: float) -> None:
        """The answer grew by these tokens: what was drafted behind them stays."""

    def due(self, now: float) -> float | None:
        """Return when the next draft will be complete; None for never before the next commit."""

    def draft(self, now: float) -> tuple[list[int], list[int] | None]:
        """Return tokens and parents of the draft that is complete now, as in `wire.Draft`. It is sent."""


class ChainDrafter:
    """One continuation, token by token."""

    def __init__(self, drafting: Drafting, draft_s: float) -> None:
        self._drafting, self._draft_s = drafting, draft_s
        self._position = self._sent = self._first = self._forwards = 0
        self._since = 0.0

    def begin(self, request: Request, now: float) -> None:
        self._request, self._position = request, 0
        self._restart(now)

    def commit(self, tokens: Sequence[int], now: float) -> None:
        known = self._known(now)
        right = self._request.right(self._position, len(tokens))
        self._position += len(tokens)
        if right == len(tokens) <= known:
            # The forward under way goes on.
            self._since += len(tokens) * self._draft_s
            if not self._drafting.ahead and self._sent:
                self._since = now - (known - len(tokens)) * self._draft_s
            self._plan()
        else:
            self._restart(now)

    def due(self, now: float) -> float | None:
        if not self._sent and self._first >= 0:
            return max(now, self._since + self._forwards * self._draft_s)
        length = min(self._sent + self._drafting.grown, self._room, self._drafting.most)
        if not self._drafting.ahead or length <= self._sent:
            return None
        return max(now, self._since + length * self._draft_s)

    def draft(self, now: float) -> tuple[list[int], list[int] | None]:
        length = self._first
        if self._drafting.ahead:
            length = max(length, min(self._known(now), self._room, self._drafting.most))
        self._first, self._sent = -1, length
        return list(self._request.firsts[self._position : self._position + length]), None

    @property
    def _room(self) -> int:
        return max(0, len(self._request.answer) - self._position - 1)

    def _known(self, now: float) -> int:
        """Tokens that are drafted; without `ahead` no more than were sent."""
        forwards = int((now - self._since) / self._draft_s + _LATE)
        return forwards if self._drafting.ahead or not self._sent else min(forwards, self._sent)

    def _restart(self, now: float) -> None:
        self._since = now
        self._plan()

    def _plan(self) -> None:
        """Decide how long the next draft will be, and how many forwards it takes."""
        self._sent = 0
        self._first = self._forwards = min(self._drafting.tokens, self._room)
        if self._drafting.predictor and self._first:
            length = self._request.predicted(self._position, self._first)
            if length < self._first:
                # The token that the predictor rejects was drafted, too.
                self._first, self._forwards = max(1, length), length + 1


class TreeDrafter:
    """The best tree of a given size, level by level, and the likeliest place behind it where drafting goes on.

    Where the verdict ends there, the levels that were drafted while the draft was away are kept (SpecEdge, Sec. 4.2).
    """

    def __init__(self, drafting: Drafting, draft_s: float, kinds: Kinds) -> None:
        """`kinds`: see `Workload`."""
        self._drafting, self._draft_s, self._kinds = drafting, draft_s, kinds
        self._position = self._ahead = 0
        """Where the next tree begins, and how many of its levels are drafted already."""
        self._began = 0.0
        self._sent_at: float | None = None
        self._head: Path = ()

    def begin(self, request: Request, now: float) -> None:
        self._request, self._position = request, 0
        self._ahead, self._began, self._sent_at = 0, now, None

    def commit(self, tokens: Sequence[int], now: float) -> None:
        start, end = self._position, self._position + len(tokens)
        self._ahead = 0
        if self._drafting.ahead and self._sent_at is not None and self._request.ranks[start:end] == self._head:
            self._ahead = int((now - self._sent_at) / self._draft_s + _LATE)
        self._position, self._began, self._sent_at = end, now, None

    def due(self, now: float) -> float | None:
        if self._sent_at is not None:
            return None
        return max(now, self._began + self._drafting.tokens * self._draft_s)

    def draft(self, now: float) -> tuple[list[int], list[int] | None]:
        room = max(0, len(self._request.answer) - self._position - 1)
        depth = self._drafting.tokens + self._ahead
        levels = levels_of(self._request, self._position, depth + 1, self._kinds)
        shape = best_tree(levels, self._drafting.tree, depth)
        self._head, self._sent_at = shape.head, now
        sent = shape.within(room)
        return sent.tokens(self._request.firsts, self._position), list(sent.parents)


def levels_of(request: Request, position: int, depth: int, kinds: Kinds) -> tuple[tuple[float, ...], ...]:
    """Return the chances of each candidate at so many answer positions from `position` on."""
    return tuple(kinds[kind] for kind in request.kinds[position : position + depth])
