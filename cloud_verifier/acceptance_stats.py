"""Statistics of a session's passes and drafts show which draft tokens the target accepts, when drafts come and how fast
the answer grows. A step reports to them once per event; the ledger and the policies read them.

Times are seconds on one clock that is given.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import mul

from cloud_verifier.choice import Act
from cloud_verifier.server_draft.value import DraftRetries, ServerDraftValue
from cloud_verifier.tree import NOTHING, Tree
from speculation.wire import ROOT

_KEPT = 0.96
"""Weight of what was seen before, a verdict later."""
_WEIGHT = 4.0
"""How many verdicts at a depth count as much as what is known of all depths."""
_DEEPEST, _LAST = 8, 4
"""Deeper levels, and later siblings, are counted together."""
_DEPTH_WEIGHT = 0.25
"""Weight of the latest draft in the mean depth of drafts."""


@dataclass(frozen=True)
class PassVerdict:
    """Outcome of one pass of a step."""

    act: Act
    tree: Tree
    """Draft that was verified."""
    path: tuple[int, ...]
    """Indices of its accepted tokens, root first."""
    committed: Sequence[int]
    """Tokens that the pass committed."""
    position: int
    """Length of the answer with them."""
    has_draft: bool
    """Whether a draft is at hand to go on with."""
    now: float
    declined: Tree = NOTHING
    """Draft of the edge that was at hand for the pass and not verified."""


@dataclass
class _Share:
    """A running share of accepted tokens."""

    accepted: float = 0.0
    judged: float = 0.0

    def learn(self, accepted: int, judged: int = 1) -> None:
        self.accepted = _KEPT * self.accepted + accepted
        self.judged = _KEPT * self.judged + judged

    def towards(self, prior: float, weight: float) -> float:
        return (self.accepted + prior * weight) / (self.judged + weight)


class TokenAcceptance:
    """Chances that the target accepts the tokens of one source's drafts, by their place, learned from its verdicts.

    A token at depth d (1: behind the answer's end) that is the r-th of its siblings (0: drafted first) is accepted
    with chance c(d, r) where its parent was, and *reached* with the product of these chances along its path. Both
    are what was seen at (d, r) where that is much, else nearer to what was seen at r at all depths, and that nearer to
    2^-(r+1). Siblings exclude each other, so that a visited parent judges all its children.
    """

    def __init__(self) -> None:
        self.tries = DraftRetries()
        self._places: dict[tuple[int, int], _Share] = {}
        self._ranks: dict[int, _Share] = {}
        self._drafted = _Share()
        self._chances: dict[tuple[int, int], float] = {}

    @property
    def share(self) -> float:
        """Accepted of all drafted tokens, those below a rejection among them: alpha of WISP, Eq. 5."""
        return self._drafted.towards(0.5, 1.0)

    def reach(self, parents: Sequence[int]) -> list[float]:
        """Return the chance that each token of a tree is accepted; `parents[i]` < i is its parent's index or ROOT."""
        if tuple(parents) == tuple(range(ROOT, len(parents) - 1)):  # most drafts are chains
            return list(itertools.accumulate((self._chance(level, 0) for level in range(1, 1 + len(parents))), mul))
        depths: list[int] = []
        found: list[float] = []
        siblings: Counter[int] = Counter()
        for parent in parents:
            depth, above = (1, 1.0) if parent == ROOT else (depths[parent] + 1, found[parent])
            depths.append(depth)
            found.append(above * self._chance(depth, siblings[parent]))
            siblings[parent] += 1
        return found

    def expected(self, parents: Sequence[int]) -> list[float]:
        """Return the tokens E that verifying the first 0, 1, 2, ... tokens of a tree commits (Leviathan et al., arXiv
        2211.17192, Eq. 1)."""
        return list(itertools.accumulate(self.reach(parents), initial=1.0))

    def judged(self, parents: Sequence[int], path: Sequence[int]) -> None:
        """Learn from a verdict on a tree: the indices of its accepted tokens, root first."""
        self._drafted.learn(len(path), len(parents))
        self.seen(parents, path, len(parents))

    def seen(self, parents: Sequence[int], path: Sequence[int], depth: int) -> None:
        """Learn from what the first `depth` levels of a tree have in common with the answer, verified or not."""
        depths = {ROOT: 0, **{node: level for level, node in enumerate(path, start=1)}}
        siblings: Counter[int] = Counter()
        for node, parent in enumerate(parents):
            if parent in depths and depths[parent] < depth:
                rank, place = min(siblings[parent], _LAST), min(depths[parent] + 1, _DEEPEST)
                siblings[parent] += 1
                self._places.setdefault((place, rank), _Share()).learn(node in depths)
                self._ranks.setdefault(rank, _Share()).learn(node in depths)
        self.tries.judged(bool(path))
        self._chances.clear()

    def declined(self) -> None:
        """Let what was seen fade, for a draft was at hand and not verified: so drafts are tried again in the end."""
        self.tries.declined()
        for share in (*self._places.values(), *self._ranks.values(), self._drafted):
            share.learn(0, 0)
        self._chances.clear()

    def _chance(self, depth: int, rank: int) -> float:
        place = min(depth, _DEEPEST), min(rank, _LAST)
        chance = self._chances.get(place)
        if chance is None:
            overall = self._ranks.get(place[1], _Share()).towards(0.5 ** (place[1] + 1), 1.0)
            chance = self._chances[place] = self._places.get(place, _Share()).towards(overall, _WEIGHT)
        return chance


class DraftDelays:
    """Delays from a commit to the first draft that follows it, as far as it kept the verifier waiting.

    Drafts that came ahead of their commit are no delays: what is asked is how long to wait where none did.
    """

    _KEPT = 16
    _LEAST = 2
    _LATE = 1.05
    """A draft is taken to need so much longer than one before it: the deadline must not fall just ahead of it."""
    _TICK_S = 1e-6
    """Shortest wait: a clock may stand still, and a wait must end."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=self._KEPT)
        self._open: list[tuple[int, float]] = []

    def clear(self) -> None:
        """Forget that any commit waits for its draft: a step begins."""
        self._open.clear()

    def committed(self, position: int, has_draft: bool, now: float) -> None:
        """Enter a commit up to answer position `position`; `has_draft`: one behind it was there already."""
        if has_draft:
            self._open.clear()
        else:
            self._open.append((position, now))

    def came(self, start: int, usable: bool, now: float) -> None:
        """Enter a draft for answer position `start`; it answers the latest commit that it can know of."""
        answered = [at for position, at in self._open if position <= start]
        if answered:
            self._delays.append(now - answered[-1])
        self._open = [] if usable else [each for each in self._open if each[0] > start]

    def remaining(self, now: float) -> list[float]:
        """Return, sorted, how much longer each remembered delay would still last; nothing where none is awaited.

        Shorter ones have passed: an overdue draft leaves few, in the end none.
        """
        if not self._open or len(self._delays) < self._LEAST:
            return []
        waited = now - self._open[0][1]
        left = (self._LATE * delay - waited for delay in self._delays)
        return sorted(each for each in left if each > self._TICK_S)


class Throughput:
    """Measures tokens per second from commit to commit, waits and others' passes included."""

    _KEPT = 0.97
    _LENT = 8.0
    """Cycles that a prior weighs as much as."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._latest: float | None = None

    def clear(self) -> None:
        """Let the next commit follow none: a step begins, or its edge was gone."""
        self._latest = None

    def committed(self, tokens: int, now: float) -> None:
        """Enter a commit of so many tokens."""
        if self._latest is not None:
            self._tokens = self._KEPT * self._tokens + tokens
            self._seconds = self._KEPT * self._seconds + now - self._latest
        self._latest = now

    def rate(self, tokens: float, seconds: float) -> float:
        """Return tokens per second, begun as `tokens` in `seconds`."""
        return (self._tokens + self._LENT * tokens) / (self._seconds + self._LENT * seconds)


class AcceptanceStats:
    """All that one session has shown, by the source of its drafts."""

    def __init__(self) -> None:
        self.edge, self.hints, self.server_draft = TokenAcceptance(), TokenAcceptance(), ServerDraftValue()
        self.throughput = Throughput()
        self.depth = 1.0
        """Mean levels of the edge's drafts."""
        self.delays = DraftDelays()

    def acceptance_of(self, act: Act) -> TokenAcceptance | None:
        """Return what was seen of the drafts that an act verifies, None where these are the verifier's own or none."""
        return {Act.VERIFY: self.edge, Act.HINT: self.hints}.get(act)

    def on_draft(self, start: int, usable: bool, depth: int, now: float) -> None:
        """Enter a draft for answer position `start`, `depth` levels deep; `usable`: it continues the answer."""
        self.delays.came(start, usable, now)
        self.depth += _DEPTH_WEIGHT * (depth - self.depth)

    def on_start(self, declined: Collection[Act]) -> None:
        """Enter that a pass begins, and what it left alone."""
        for each in declined:
            acceptance = self.acceptance_of(each)
            (self.server_draft.tries if acceptance is None else acceptance).declined()

    def on_verdict(self, verdict: PassVerdict) -> None:
        """Enter the outcome of a pass."""
        tree, acceptance = verdict.tree, self.acceptance_of(verdict.act)
        if acceptance is not None and tree.tokens:
            acceptance.judged(tree.parents, verdict.path)
        elif verdict.act is Act.SELF and tree.reach:  # a draft of a size that its robot has set may come without
            self.server_draft.judged(tree, len(verdict.path))
        if verdict.declined.tokens:
            other = verdict.declined
            self.edge.seen(other.parents, other.path(verdict.committed), len(verdict.committed))
        self.delays.committed(verdict.position, verdict.has_draft, verdict.now)
        self.throughput.committed(len(verdict.committed), verdict.now)
