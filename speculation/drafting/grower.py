"""Keeps the draft model's nodes in step with the token tree: one forward at a time, nothing fed twice."""

from __future__ import annotations

import numpy as np

from speculation.drafting.model import Clock, DraftModel, Logits
from speculation.drafting.predictor import Predictor
from speculation.drafting.tree import Node, Origin, Proposals, Rerooting, TokenTree
from speculation.wire import ROOT


def propose(logits: Logits, predictor: Predictor | None = None, depth: int = 1) -> Proposals:
    """Return the likeliest next token of one row of logits, [vocabulary], with the probability that it is accepted.

    That is the predictor's, which is calibrated; without one the draft's own, which need not be. `depth` counts from 1
    for the token behind the last committed one.
    """
    best = int(np.argmax(logits))
    if predictor is not None:
        return ((best, predictor.chance(logits, depth)),)
    shifted = np.exp(logits - logits[best])
    return ((best, float(1.0 / shifted.sum())),)


class Grower:
    """Grows a tree with a draft model. `slots` maps tree nodes that were fed to the model's nodes."""

    def __init__(self, model: DraftModel, clock: Clock, predictor: Predictor | None = None) -> None:
        self._model = model
        self._predictor = predictor
        self._clock = clock
        self.tree = TokenTree()
        self._slots: dict[int, int] = {self.tree.root: ROOT}
        self._count = 0

    def feed(self, node: int) -> float:
        """Feed `node` (and its unfed ancestors, in the same forward), add its likeliest child; return the seconds."""
        started = self._clock()
        pending: list[int] = []
        current = node
        while current not in self._slots:
            pending.append(current)
            current = self._parent(current)
        pending.reverse()
        if pending:
            fed = range(self._count, self._count + len(pending))
            logits = self._model.extend(
                [self.tree[each].token for each in pending], [self._slots[current], *fed[: len(pending) - 1]]
            )
            self._slots.update(zip(pending, fed, strict=True))
            self._count += len(pending)
            for each, row in zip(pending, logits, strict=True):
                self.tree.score(each, self._propose(row, each))
        else:
            self.tree.score(node, self._propose(self._model.root_logits(), node))
        seconds = self._clock() - started
        self._add_child(node, seconds)
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

    def _propose(self, logits: Logits, node: int) -> Proposals:
        return propose(logits, self._predictor, self.tree[node].depth - self.tree[self.tree.root].depth + 1)

    def _add_child(self, node: int, seconds: float) -> None:
        proposals = self.tree[node].proposals
        if proposals:
            token, probability = proposals[0]
            child = self.tree[self.tree.add(node, token, probability, Origin.DRAFT)]
            child.forwards += 1
            child.seconds += seconds

    def _parent(self, node: int) -> int:
        parent = self.tree[node].parent
        if parent is None:
            raise KeyError(f"node {node} has no fed ancestor")
        return parent


def work(nodes: tuple[Node, ...]) -> tuple[int, float]:
    """Return the draft forwards that proposed `nodes`, and their seconds."""
    return sum(node.forwards for node in nodes), sum(node.seconds for node in nodes)
