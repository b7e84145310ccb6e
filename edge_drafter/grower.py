"""Keeps the draft model's nodes in step with the token tree: several leaves a forward, nothing fed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_drafter.model import Clock, DraftModel
from edge_drafter.tree import Node, Origin, Proposals, Rerooting, TokenTree
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Distributions, Logits
from speculation.predictor import Predictor
from speculation.wire import ROOT


def propose(
    rows: Distributions,
    depths: Sequence[int],
    also: Sequence[Sequence[int]],
    predictor: Predictor | None = None,
    width: int = 1,
) -> list[Proposals]:
    """Return, for each row, the `width` likeliest next tokens and those in `also`, the likeliest first.

    Each with the probability that it is accepted. For the likeliest that is the predictor's, which is calibrated, or
    without one the draft's own, which need not be; the others share the rest as the draft sees them. `depths` count
    from 1 for the token behind the last committed one.
    """
    own = [1.0 / total for total in rows.totals]
    first = own if predictor is None else predictor.chances(rows, depths)
    shares = [(1.0 - f) / (1.0 - o) * o if o < 1.0 else 0.0 for f, o in zip(first, own, strict=True)]
    proposals = [[pair] for pair in zip(rows.rank(0)[0], first, strict=True)]
    for place in range(1, min(width, rows.size)):
        for row, (token, weight) in enumerate(zip(*rows.rank(place), strict=True)):
            proposals[row].append((token, shares[row] * weight))
    for row, tokens in enumerate(also):
        if tokens:
            known = {token for token, _ in proposals[row]}
            proposals[row] += [(t, shares[row] * rows.weights.item(row, t)) for t in tokens if t not in known]
    return [tuple(each) for each in proposals]


class Grower:
    """Grows a tree with a draft model, `width` children a node. `slots` maps fed tree nodes to the model's."""

    def __init__(self, model: DraftModel, clock: Clock, predictor: Predictor | None = None, width: int = 1) -> None:
        self._model = model
        self._predictor = predictor
        self._clock = clock
        self._width = width
        self.tree = TokenTree()
        self._slots: dict[int, int] = {self.tree.root: ROOT}
        self._count = 0

    def feed(self, leaves: Sequence[int], poll: Callable[[], bool] | None = None) -> float:
        """Feed `leaves` and their unfed ancestors in one forward, add what may follow each, and return the seconds.

        `poll` is called between layers and says whether to give up; it may re-root the tree, which `commit` is told of
        afterwards. Raises Abandoned then, and where nothing of what was being fed is possible any more.
        """
        started = self._clock()
        tree, root = self.tree, self.tree.root
        pending = self._unfed(leaves)
        stop = None if poll is None else self._stop(poll, pending or [root])
        rows: dict[int, Logits] = {}
        if pending:
            fed = dict(zip(pending, range(self._count, self._count + len(pending)), strict=True))
            slots = {**self._slots, **fed}
            parents = [slots[tree.parent(node)] for node in pending]
            logits = self._model.extend([tree[node].token for node in pending], parents, stop)
            self._slots.update(fed)
            self._count += len(pending)
            rows = dict(zip(pending, logits, strict=True))
        if root in tree and tree[root].proposals is None:
            # Free where tokens were fed behind the root: it went in front of them.
            rows[root] = self._model.root_logits(None if pending else stop)
        possible = [node for node in sorted(rows) if node in tree]
        if not possible:
            raise Abandoned
        new = self._add_children(possible, np.array([rows[node] for node in possible]))
        seconds = self._clock() - started
        self._book(new, seconds)
        return seconds

    def commit(self, rerooting: Rerooting) -> None:
        """Tell the model what `TokenTree.reroot` made of the tree. Several may wait, in order, for a `feed`."""
        path = rerooting.path
        fed = 0
        while fed < len(path) and path[fed][0] in self._slots:
            fed += 1
        if fed == len(path):
            fed -= 1
        slots = [self._slots[node] for node, _ in path[:fed]]
        for node, content in path[fed:]:
            renamed = self._model.commit(slots, content.token)
            self._slots = {each: renamed[slot] for each, slot in self._slots.items() if slot in renamed}
            self._slots[node] = ROOT
            slots = []
        self._count = max(self._slots.values()) + 1

    def _unfed(self, leaves: Sequence[int]) -> list[int]:
        pending: set[int] = set()
        for node in leaves:
            while node not in self._slots and node not in pending:
                pending.add(node)
                node = self.tree.parent(node)
        return sorted(pending)

    def _add_children(self, nodes: Sequence[int], rows: Logits) -> list[int]:
        """Score fed nodes; return the likeliest child of each. What earlier answers proposed gets the draft's word."""
        tree = self.tree
        above = tree[tree.root].depth - 1
        depths = [tree[node].depth - above for node in nodes]
        known = [tuple(tree[node].children) for node in nodes]
        likeliest = []
        for node, proposals in zip(
            nodes, propose(Distributions(rows), depths, known, self._predictor, self._width), strict=True
        ):
            tree.score(node, proposals)
            for token, probability in proposals:
                child = tree.add(node, token, probability, Origin.DRAFT)
                if tree[child].origin is Origin.NGRAM:
                    tree.rate(child, probability)
            likeliest.append(tree[node].children[proposals[0][0]])
        return likeliest

    def _book(self, nodes: list[int], seconds: float) -> None:
        """Charge a forward to the first token that it proposed, and its time to all of them alike."""
        self.tree[nodes[0]].forwards += 1
        for node in nodes:
            self.tree[node].seconds += seconds / len(nodes)

    def _stop(self, poll: Callable[[], bool], nodes: Sequence[int]) -> Stop:
        def is_useless() -> bool:
            return poll() or not any(node in self.tree for node in nodes)

        return is_useless


def work(nodes: tuple[Node, ...]) -> tuple[int, float]:
    """Return the draft forwards that proposed `nodes`, and their seconds."""
    return sum(node.forwards for node in nodes), sum(node.seconds for node in nodes)
