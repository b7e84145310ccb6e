"""Robots: what they draft, and when they send it. A robot knows of its answer only what it was sent."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from speculation.wire import ROOT, EarlyTokens
from vlm_nav_evaluation.fleet.systems import Drafting
from vlm_nav_evaluation.fleet.trees import Path, Shape, best_tree, expected_tokens, widened_tree
from vlm_nav_evaluation.fleet.workload import Request

_LATE = 1e-9
MOST_HEADS = 16
"""Places that are considered where `Drafting.heads` is 0."""
LATEST = 0.2
"""Weight of the latest value in a mean over time."""

Kinds: TypeAlias = tuple[tuple[float, ...], ...]


class ChainDrafter:
    """A draft model at work behind the end of an answer: one continuation, token by token.

    Times are seconds on the fleet's clock.
    """

    def __init__(self, drafting: Drafting, draft_s: float) -> None:
        self._drafting, self._draft_s = drafting, draft_s
        self._position = self._sent = self._first = self._forwards = 0
        self._since = 0.0

    def begin(self, request: Request, now: float) -> None:
        """Start on the empty answer."""
        self._request, self._position = request, 0
        self._restart(now)

    def commit(self, tokens: Sequence[int], now: float) -> None:
        """The answer grew by these tokens: what was drafted behind them stays."""
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
        """Return when the next draft will be complete; None for never before the next commit."""
        if not self._sent and self._first >= 0:
            return max(now, self._since + self._forwards * self._draft_s)
        length = min(self._sent + self._drafting.grown, self._room, self._drafting.most)
        if not self._drafting.ahead or length <= self._sent:
            return None
        return max(now, self._since + length * self._draft_s)

    def early(self, early: EarlyTokens, now: float) -> None:
        """An exit of the target names where the verdict will end; a chain has one place where it goes on."""

    def draft(self, now: float) -> tuple[list[int], list[int] | None]:
        """Return tokens and parents of the draft that is complete now, as in `wire.Draft`. It is sent."""
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
    """As `ChainDrafter`: the best tree of a given size, level by level, and places behind it where drafting goes on.

    SpecEdge, Sec. 4.2.

    While a draft is away a forward feeds the places where the verdict may end side by side, sharing its nodes as
    `shares_of` has it: the likeliest ones just behind the tree, and what an exit names, as likely as the exit is right.
    What was drafted behind the place where the verdict does end is kept.
    """

    def __init__(self, drafting: Drafting, draft_s: float, kinds: Kinds, shares: Sequence[float]) -> None:
        """`kinds` and `shares`: see `Workload`."""
        self._drafting, self._draft_s, self._kinds = drafting, draft_s, kinds
        self._after = np.asarray(shares, dtype=float)
        """How many positions are of each kind behind places where a verdict ended, lately."""
        self._position = 0
        self._widths: tuple[int, ...] = ()
        """Most nodes of each level that was drafted before the position was known."""
        self._began = self._since = 0.0
        self._sent_at: float | None = None
        self._sent = Shape(())
        self._chances: dict[Path, float] = {}
        """Places where the verdict may end."""
        self._fed: dict[Path, int] = {}
        """Nodes that a forward feeds behind each of them."""
        self._behind: dict[Path, tuple[int, ...]] = {}
        """Widths of the levels drafted behind places."""
        self._away = 0.0
        """Forwards in which a draft was away lately, mean."""

    def begin(self, request: Request, now: float) -> None:
        self._request, self._position = request, 0
        self._widths, self._began, self._sent_at = (), now, None

    def commit(self, tokens: Sequence[int], now: float) -> None:
        start, end = self._position, self._position + len(tokens)
        self._widths = ()
        if self._sent_at is not None:
            forwards = int((now - self._sent_at) / self._draft_s + _LATE)
            self._away += LATEST * (forwards - self._away) if self._away else forwards
            self._credit(now)
            self._widths = self._behind.get(self._request.ranks[start:end], ())
            kinds = self._request.kinds[end : end + len(self._widths)]
            if kinds:
                shares = np.bincount(kinds, minlength=len(self._after)) / len(kinds)
                self._after += LATEST * (shares - self._after)
        self._position, self._began, self._sent_at = end, now, None

    def due(self, now: float) -> float | None:
        if self._sent_at is not None:
            return None
        return max(now, self._began + self._drafting.tokens * self._draft_s)

    def early(self, early: EarlyTokens, now: float) -> None:
        if self._sent_at is None or not self._drafting.ahead:
            return
        node = () if early.node == ROOT else self._sent.nodes[early.node]
        place = (*node, early.token - self._request.firsts[self._position + len(node)])
        others = {path: (1.0 - early.confidence) * chance for path, chance in self._chances.items() if path != place}
        self._feed(others | {place: early.confidence}, now)

    def draft(self, now: float) -> tuple[list[int], list[int] | None]:
        drafting, room = self._drafting, max(0, len(self._request.answer) - self._position - 1)
        deepest = drafting.tokens + len(self._widths)
        levels = levels_of(self._request, self._position, deepest + 1, self._kinds)
        shape = widened_tree(levels, drafting.tree, drafting.tokens, drafting.heads or MOST_HEADS, self._widths)
        self._sent, self._sent_at, self._since = shape.within(room), now, now
        self._behind, self._fed = {}, {}
        if drafting.oracle:
            self._feed({self._landing(): 1.0}, now)
        elif drafting.ahead:
            self._feed(dict(zip(shape.heads, shape.chances, strict=True)), now)
        return self._sent.tokens(self._request.firsts, self._position), list(self._sent.parents)

    def _landing(self) -> Path:
        """Return the place where the verdict on the tree that is sent will end."""
        ranks = self._request.ranks[self._position :]
        return tuple(ranks[: self._sent.accepted(ranks) + 1])

    def _credit(self, now: float) -> None:
        """Note what was drafted since the places changed."""
        forwards = int((now - self._since) / self._draft_s + _LATE)
        for place, width in self._fed.items():
            self._behind[place] = self._behind.get(place, ()) + (width,) * forwards

    def _feed(self, places: dict[Path, float], now: float) -> None:
        """Go on behind these places from now on; a forward under way is lost where they change."""
        self._credit(now)
        tree, forwards = self._drafting.tree, max(1, round(self._away))
        widths = widths_to(tree)
        worth = self._after @ [
            [ahead_worth(kind, tree, self._drafting.tokens, forwards, width) for width in widths]
            for kind in self._kinds
        ]
        given = shares_of(tuple(places.values()), widths, worth.tolist())
        self._chances = places
        self._fed = {place: width for place, width in zip(places, given, strict=True) if width}
        self._since = now


def widths_to(size: int) -> tuple[int, ...]:
    """Return how many of `size` nodes a place may get."""
    return (0, *(2**power for power in range((size - 1).bit_length())), size)


def shares_of(chances: Sequence[float], widths: Sequence[int], worth: Sequence[float]) -> list[int]:
    """Return how many of a forward's nodes each place gets, so that the expected gain is large: SpecEdge's Eq. 1, for
    places that are not alike.

    widths: what a place may get, from 0 to all there are; worth: what that many bring behind the place where the
    verdict ends. The next nodes go where they bring most a node, until the next ones are more than are left; the
    likeliest place gets the rest.
    """
    if len(chances) == 1:
        return [widths[-1]]
    given, left = [0] * len(chances), widths[-1]
    queue: list[tuple[float, int, int]] = []

    def offer(place: int, level: int) -> None:
        for higher in range(level + 1, len(widths)):
            more = (worth[higher] - worth[level]) / (widths[higher] - widths[level])
            heapq.heappush(queue, (-chances[place] * more, place, higher))

    for place in range(len(chances)):
        offer(place, 0)
    while queue:
        gain, place, higher = heapq.heappop(queue)
        more = widths[higher] - given[place]
        if gain < 0.0 and 0 < more <= left:
            left -= more
            given[place] = widths[higher]
            offer(place, higher)
    if given:
        given[int(np.argmax(chances))] += left
    return given


@lru_cache(maxsize=4096)
def ahead_worth(kind: tuple[float, ...], size: int, depth: int, forwards: int, width: int) -> float:
    """Return the tokens that a tree of `depth` commits more if `forwards` levels of `width` were drafted before it,
    where all positions are of one kind."""
    if not width:
        return 0.0
    levels = (kind,) * (depth + forwards)
    ahead = widened_tree(levels, size, depth, widths=(width,) * forwards)
    return expected_tokens(ahead, levels) - expected_tokens(best_tree(levels, size, depth), levels)


def levels_of(request: Request, position: int, depth: int, kinds: Kinds) -> tuple[tuple[float, ...], ...]:
    """Return the chances of each candidate at so many answer positions from `position` on."""
    return tuple(kinds[kind] for kind in request.kinds[position : position + depth])
