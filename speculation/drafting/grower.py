"""Keeps the draft model's nodes in step with the token tree: several leaves a forward, nothing fed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from speculation.drafting.model import Abandoned, Clock, DraftModel, Logits, Stop
from speculation.drafting.predictor import Predictor
from speculation.drafting.tree import Node, Origin, Proposals, Rerooting, TokenTree
from speculation.wire import ROOT


def propose(
    logits: Logits, predictor: Predictor | None = None, depth: int = 1, width: int = 1, also: Sequence[int] = ()
) -> Proposals:
    """Return the `width` likeliest next tokens of one row of logits [vocabulary], and those in `also`, best first.

    Each with the probability that it is accepted. For the likeliest that is the predictor's, which is calibrated, or
    without one the draft's own, which need not be; the others share the rest as the draft sees them. `depth` counts
    from 1 for the token behind the last committed one.
    """
    best = int(np.argmax(logits))
    weights = np.exp(logits - logits[best])
    own = float(1.0 / weights.sum())
    first = own if predictor is None else predictor.chance(logits, depth)
    share = (1.0 - first) / (1.0 - own) * own if own < 1.0 else 0.0
    proposals = [(best, first)]
    if width > 1:
        count = min(width, len(weights))
        top = np.argpartition(weights, -count)[-count:]
        ranked = sorted((int(token) for token in top if token != best), key=lambda token: -float(weights[token]))
        proposals += [(token, share * float(weights[token])) for token in ranked]
    known = {token for token, _ in proposals}
    proposals += [(token, share * float(weights[token])) for token in also if token not in known]
    return tuple(proposals)


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
        new = [self._add_children(node, row) for node, row in sorted(rows.items()) if node in tree]
        if not new:
            raise Abandoned
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

    def _add_children(self, node: int, logits: Logits) -> int:
        """Score a fed node; return its likeliest child. What earlier answers proposed gets the draft's word on it."""
        tree = self.tree
        content = tree[node]
        known = tuple(content.children)
        depth = content.depth - tree[tree.root].depth + 1
        proposals = propose(logits, self._predictor, depth, self._width, known)
        tree.score(node, proposals)
        for token, probability in proposals:
            child = tree.add(node, token, probability, Origin.DRAFT)
            if tree[child].origin is Origin.NGRAM:
                tree.rate(child, probability)
        return content.children[proposals[0][0]]

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
