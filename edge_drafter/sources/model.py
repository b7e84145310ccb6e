"""The draft model as a draft source: several leaves a forward, nothing fed twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_drafter.calibration import Calibration, Cells
from edge_drafter.processed_models import ProcessedModel
from edge_drafter.protocols import DraftModel
from edge_drafter.sources import DraftSource
from edge_drafter.step import Step
from edge_drafter.tree import Origin, Proposals, Rerooting
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Distributions, Logits
from speculation.predictor import Predictor
from speculation.sampling import DraftSampler, SamplingScheme
from speculation.wire import ROOT, Commit


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
            if weight > 0.0:
                proposals[row].append((token, shares[row] * weight))
    for row, tokens in enumerate(also):
        if tokens:
            known = {token for token, _ in proposals[row]}
            proposals[row] += [(t, shares[row] * rows.weights.item(row, t)) for t in tokens if t not in known]
    return [tuple(each) for each in proposals]


class ModelSource(DraftSource):
    """Grows the tree with a draft model, `DraftingConfig.width` children a node.

    Chances are calibrated on what was committed; what was learned stays for as long as answers are sampled alike.
    """

    def __init__(self, model: DraftModel, predictor: Predictor | None = None) -> None:
        """`predictor` is the model's own."""
        self._model = model
        self._predictor = predictor
        self._step: Step
        self._calibration = Calibration()
        self._sampling: SamplingScheme | None = None
        """The way to sample that the calibration holds for."""
        self._processed: DraftModel = model
        """The model as it drafts for this step's penalty, grammar and sampling."""
        self._slots: dict[int, int] = {}
        """The model's nodes, by the tree's nodes that were fed."""
        self._count = 0

    def begin(self, step: Step) -> None:
        request = step.request
        self._step = step
        self._slots, self._count = {step.tree.root: ROOT}, 0
        if request.sampling != self._sampling:
            self._sampling, self._calibration = request.sampling, Calibration()
        sampler, processors, self._processed = request.sampling.sampler(request.key), request.processors, self._model
        if processors or sampler is not None:
            self._processed = ProcessedModel(self._model, processors, request.max_tokens, sampler, step.answer.digest)

    def read(self, stop: Stop | None = None) -> None:
        request = self._step.request
        self._processed.begin(request.prompt, request.jpeg, request.committed, stop)

    def propose(self, node: int) -> None:
        """Propose what the answer's grammar has settled.

        Not for a rule that judges sampled tokens alone, nor for an answer that this model gives by itself.
        """
        step = self._step
        fits = step.config.forced and step.config.needs_link and not step.request.sampling.one_chain
        if step.jump_forward is not None and fits and node in step.tree:
            step.jump_forward.lengthen(node, step.selector.room(node))

    def grow(self, leaves: Sequence[int], stop: Stop | None = None) -> Sequence[int]:
        """Run one draft forward, in which unfed ancestors of the leaves are fed, too."""
        model, tree, root = self._processed, self._step.tree, self._step.tree.root
        pending, is_root_due = self._unfed(leaves), self._root_is_due
        if stop is not None:
            stop = self._or_useless(stop, pending or [root])
        rows: dict[int, Logits] = {}
        if pending:
            fed = dict(zip(pending, range(self._count, self._count + len(pending)), strict=True))
            slots = {**self._slots, **fed}
            parents = [slots[tree.parent(node)] for node in pending]
            logits = model.extend([tree[node].token for node in pending], parents, stop)
            self._slots.update(fed)
            self._count += len(pending)
            rows = dict(zip(pending, logits, strict=True))
        if root in tree and is_root_due:
            # Free where tokens were fed behind the root: it went in front of them.
            rows[root] = model.root_logits(None if pending else stop)
        possible = [node for node in sorted(rows) if node in tree]
        if not possible:
            raise Abandoned
        return self._add_children(possible, np.array([rows[node] for node in possible]))

    def judge(self, tokens: Sequence[int]) -> None:
        for place, token in self._step.tree.places(tokens):
            if place.proposals is not None and place.cells:
                self._calibration.learn(place.proposals, place.cells, token)

    def commit(self, rerooting: Rerooting, message: Commit | None) -> None:
        self._calibration.fit()
        path = rerooting.path
        fed = 0
        while fed < len(path) and path[fed][0] in self._slots:
            fed += 1
        if fed == len(path):
            fed -= 1
        slots = [self._slots[node] for node, _ in path[:fed]]
        for node, content in path[fed:]:
            renamed = self._processed.commit(slots, content.token)
            self._slots = {each: renamed[slot] for each, slot in self._slots.items() if slot in renamed}
            self._slots[node] = ROOT
            slots = []
        self._count = max(self._slots.values()) + 1

    @property
    def sampler(self) -> DraftSampler | None:
        return self._processed.sampler if isinstance(self._processed, ProcessedModel) else None

    @property
    def _root_is_due(self) -> bool:
        """Whether what follows the root is not known, or not as it should be."""
        return self._step.tree[self._step.tree.root].proposals is None

    def _unfed(self, leaves: Sequence[int]) -> list[int]:
        tree, slots = self._step.tree, self._slots
        pending: set[int] = set()
        for node in leaves:
            while node not in slots and node not in pending:
                pending.add(node)
                node = tree.parent(node)
        return sorted(pending)

    def _add_children(self, nodes: Sequence[int], rows: Logits) -> list[int]:
        """Score fed nodes; return the likeliest child of each.

        What a look-up proposed gets the model's probability, and so does what was proposed before, unless an exit named
        it.
        """
        tree, config = self._step.tree, self._step.config
        if self._step.jump_forward is not None:
            nodes, rows = self._proposing(nodes, rows)
        above = tree[tree.root].depth - 1
        depths = [tree[node].depth - above for node in nodes]
        known = [tuple(tree[node].children) for node in nodes]
        found = self._proposals(rows, depths, known)
        likeliest = []
        for node, depth, proposals in zip(nodes, depths, found, strict=True):
            cells: Cells = ()
            if config.calibrate:
                proposals, cells = self._calibration.chances(proposals, config.width, depth)
            tree.score(node, proposals, cells)
            for token, probability in proposals:
                child = tree.add(node, token, probability, Origin.DRAFT)
                content = tree[child]
                if content.origin is Origin.LOOKUP or (content.chance != probability and not content.layers):
                    tree.rate(child, probability)
            likeliest.append(tree[node].children[proposals[0][0]])
        if self._step.jump_forward is not None:
            for node in nodes:
                for child in list(tree[node].children.values()):
                    self.propose(child)
        return likeliest

    def _proposing(self, nodes: Sequence[int], rows: Logits) -> tuple[Sequence[int], Logits]:
        """Return the nodes, and their rows, behind which the grammar leaves the model anything to propose."""
        proposing = rows.max(axis=1) > -np.inf
        for node, proposes in zip(nodes, proposing, strict=True):
            if not proposes:
                self._step.tree.score(node, ())
        return [node for node, proposes in zip(nodes, proposing, strict=True) if proposes], rows[proposing]

    def _proposals(self, rows: Logits, depths: Sequence[int], known: Sequence[Sequence[int]]) -> Sequence[Proposals]:
        """Return what may follow each row [vocabulary], see `propose`; `known` are the tokens that stand there."""
        return propose(Distributions(rows), depths, known, self._predictor, self._step.config.width)

    def _or_useless(self, stop: Stop, nodes: Sequence[int]) -> Stop:
        """Return a `Stop` for `stop`, and for when none of `nodes` is possible any more."""
        tree = self._step.tree
        return lambda: stop() or not any(node in tree for node in nodes)
