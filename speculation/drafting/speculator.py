"""The speculative half of a step: the token tree, the draft in flight, and where the next draft forward pays."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from speculation.drafting.answer import Answer
from speculation.drafting.branches import Branch, BranchQueue
from speculation.drafting.config import DraftingConfig
from speculation.drafting.controller import Controller
from speculation.drafting.grower import Grower, work
from speculation.drafting.model import Clock, DraftModel
from speculation.drafting.predictor import Predictor
from speculation.drafting.stats import DecodingStats
from speculation.drafting.tree import Node, Rerooting
from speculation.wire import ROOT, Commit, Draft, EarlyTokens


class Landing(Enum):
    """Where a commit came down: on a full, unspent draft, on none, or where no draft is needed."""

    HIT = "hit"
    MISS = "miss"
    NEITHER = "neither"


@dataclass
class Flight:
    """A draft that is being verified. `nodes` are its tree nodes, `sent_at` the time it first left."""

    message: Draft
    nodes: list[int]
    sent_at: float
    repeated_at: float


class Speculator:
    """Grows one step's tree, cuts drafts from it and re-roots it; knows no link.

    A *full* draft has gamma tokens, or reaches the answer's end or the last place where a draft token can stand:
    the verdict adds a token of its own, so a draft never fills the answer up. With `stop_below` it is full, too, where
    its last token is predicted to be rejected. That token is sent: WISP (Eq. 25) leaves it out, but its forward is
    spent, one more token in a verification costs next to nothing, and the prediction may be wrong. So no draft is empty
    because of a prediction.
    """

    def __init__(
        self,
        model: DraftModel,
        answer: Answer,
        ends: Collection[int],
        config: DraftingConfig,
        clock: Clock,
        max_draft: int,
        stats: DecodingStats,
        controller: Controller | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        self._answer = answer
        self._ends = frozenset(ends)
        self._config = config
        self._clock = clock
        self._max_draft = max_draft
        self._stats = stats
        self._controller = controller
        self._grower = Grower(model, clock, predictor)
        self._tree = self._grower.tree
        self._queue = BranchQueue(config.queue_policy, config.branches, config.seed)
        self._round = 0
        self._uncommitted: list[Rerooting] = []
        self._gamma = self._choose_gamma()
        self.flight: Flight | None = None

    @property
    def rounds(self) -> int:
        """How many drafts have left so far; the newest one's number."""
        return self._round

    @property
    def is_ready(self) -> bool:
        """Whether a full draft stands behind the root and none is in flight."""
        return self.flight is None and self._is_full(self._tree.root, self._need())

    def next_node(self) -> int | None:
        """Return the tree node whose forward pays most now; None where nothing is to be drafted."""
        if self.flight is None:
            return None if self.is_ready else self._end(self._tree.root, self._need())
        if not self._config.predraft or len(self._tree) >= self._config.max_nodes:
            return None
        for branch in self._queue.best():
            if not self._is_full(branch.anchor, branch.want):
                return self._end(branch.anchor, branch.want)
        return None

    def grow(self, node: int) -> float:
        """Run one draft forward at `node` and return its seconds."""
        self._catch_up()
        seconds = self._grower.feed(node)
        self._stats.draft_forwards += 1
        if self.flight is None:
            self._stats.draft_s += seconds
        else:
            self._stats.predraft_s += seconds
        if self._controller is not None:
            self._controller.drafted(seconds)
        return seconds

    def launch(self, step: int) -> Draft:
        """Cut the draft to send from the tree. It is in flight from now on, and its own continuation is a branch."""
        nodes = self._path(self._tree.root, self._need())
        tokens = [self._tree[node].token for node in nodes]
        self._round += 1
        message = Draft(step, self._round, self._answer.position, self._answer.digest, tokens)
        now = self._clock()
        self.flight = Flight(message, nodes, now, now)
        self._stats.drafted += len(tokens)
        self._gamma = self._choose_gamma()
        self._queue.clear()
        want = self._need(len(nodes) + 1)
        last = nodes[-1] if nodes else self._tree.root
        if want > 0 and not self._closes(last):
            self._queue.put(Branch(last, want + 1, self._tree[last].reach))
        return message

    def hear(self, early: EarlyTokens) -> bool:
        """Raise a branch where an exit says that the verdict will land, and return whether it did.

        Rumours about other rounds are too late.
        """
        flight = self.flight
        if flight is None or early.round != flight.message.round or early.node >= len(flight.nodes):
            return False
        self._stats.early_received += 1
        if not self._config.use_early_tokens:
            return False
        anchor = self._tree.root if early.node == ROOT else flight.nodes[early.node]
        if early.node != ROOT and self._tree[anchor].token in self._ends:
            return False
        landing = self._tree.raise_branch(anchor, early.token, early.confidence, early.layer)
        want = self._need(early.node + 2)
        if want > 0 and early.token not in self._ends:
            self._queue.put(Branch(landing, want, early.confidence))
        return True

    def land(self, commit: Commit, tokens: list[int], now: float) -> Landing:
        """Re-root the tree at a commit that the answer has taken in, and book what it says about the draft."""
        self._judge(commit, tokens, now)
        rerooting = self._tree.reroot(tokens)
        self._uncommitted.append(rerooting)
        self._waste(rerooting.dropped)
        flight = self.flight
        if flight is not None and (commit.round == flight.message.round or self._tree.root not in flight.nodes):
            self.flight = None
            self._queue.clear()
        if self._answer.done or self.flight is not None or self._need() == 0:
            return Landing.NEITHER
        if not self.is_ready:
            self._stats.misses += 1
            return Landing.MISS
        self._stats.hits += 1
        layers = rerooting.path[-1][1].layers
        if layers:
            self._stats.early_hits[layers[0]] = self._stats.early_hits.get(layers[0], 0) + 1
        return Landing.HIT

    def close(self) -> None:
        """The step is over: what the tree still holds was drafted for nothing."""
        self._waste(tuple(self._tree[node] for node in self._tree.ids() if node != self._tree.root))

    def _catch_up(self) -> None:
        """Tell the draft model about commits. Put off until it is needed, so that a hit's draft leaves first."""
        for rerooting in self._uncommitted:
            self._grower.commit(rerooting)
        self._uncommitted.clear()

    def _judge(self, commit: Commit, tokens: list[int], now: float) -> None:
        flight = self.flight
        if flight is None or commit.round != flight.message.round or commit.start != flight.message.start:
            return
        sent = flight.message.tokens
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(sent, tokens, strict=False))
        accepted = sum(1 for _ in pairs)
        self._stats.accepted += accepted
        if self._controller is not None:
            self._controller.judged(len(sent), accepted, now - flight.sent_at)

    def _waste(self, nodes: tuple[Node, ...]) -> None:
        forwards, seconds = work(nodes)
        self._stats.wasted_forwards += forwards
        self._stats.wasted_s += seconds

    def _choose_gamma(self) -> int:
        if self._controller is not None:
            return self._controller.gamma
        return self._config.fixed_gamma

    def _need(self, ahead: int = 0) -> int:
        """Return how many tokens make a full draft once `ahead` more tokens are committed."""
        return max(0, min(self._gamma, self._max_draft, self._answer.room - ahead - 1))

    def _is_full(self, node: int, want: int) -> bool:
        path = self._path(node, want)
        return len(path) >= want or self._closes(path[-1] if path else node)

    def _end(self, node: int, want: int) -> int:
        path = self._path(node, want)
        return path[-1] if path else node

    def _path(self, node: int, want: int) -> list[int]:
        path = self._tree.likeliest_path(node, want, self._ends)
        return path[: next((place for place, each in enumerate(path, 1) if self._closes(each)), None)]

    def _closes(self, node: int) -> bool:
        """Whether nothing is drafted behind a node: it ends the answer, or is predicted to be rejected."""
        content = self._tree[node]
        return node != self._tree.root and (content.token in self._ends or content.chance < self._config.stop_below)
