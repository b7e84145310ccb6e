"""A fed head as a draft source: it continues from the target's features, which come with the commits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from edge_drafter.protocols import FedModel
from edge_drafter.sources.model import ModelSource, propose
from edge_drafter.step import Step
from edge_drafter.tree import Proposals, Rerooting
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Distributions, Logits
from speculation.wire import BeginStep, Commit, Features

_log = logging.getLogger(__name__)


class FedSource(ModelSource):
    """Grows the tree as a draft model does, without a prefill, and begins when something of the step has arrived.

    Where the target's feature replaces the head's own, the root's children get new probabilities, and with them all
    that is drafted behind. Features that do not fit are left out: the head goes on with its own.
    """

    def __init__(self, model: FedModel) -> None:
        super().__init__(model)
        self._fed = model
        self._places = {token: place for place, token in enumerate(model.tokens.tolist())}
        self._waiting: list[Features] = []
        """Features that are not fed yet: they may have come while a forward ran."""
        self._began = False
        self._warned = False

    def announce(self, begin: BeginStep) -> BeginStep:
        return msgspec.structs.replace(begin, features=True)

    def begin(self, step: Step) -> None:
        self._waiting.clear()
        self._began = False
        super().begin(step)

    def feed(self, message: Features) -> None:
        self._waiting.append(message)

    @property
    def ready(self) -> bool:
        return self._began or bool(self._waiting)

    def grow(self, leaves: Sequence[int], stop: Stop | None = None) -> Sequence[int]:
        """Run one draft forward over the first node on each way to a leaf that is not fed: every further one takes a
        forward of its own.

        For the same reason a child of the root does not share a forward with the root. Where the likeliest node is one,
        and what follows the root is known, new features wait; else the children wait.
        """
        tree, root = self._step.tree, self._step.tree.root
        level = list(dict.fromkeys(next(iter(self._unfed([leaf])), leaf) for leaf in leaves))
        children = [node for node in level if node != root and tree.parent(node) == root]
        if self._root_is_due or not self._began or level[0] not in children:
            self._take_waiting()
        if not self._began:
            raise Abandoned
        if self._root_is_due:
            level = [node for node in level if node not in children] or [root]
        return super().grow(level, stop)

    def commit(self, rerooting: Rerooting, message: Commit | None) -> None:
        super().commit(rerooting, message)
        self._began = True
        if message is not None and message.features:
            end = message.start + len(message.tokens)
            self._waiting.append(Features(message.step, end, message.tokens, message.features))

    @property
    def _root_is_due(self) -> bool:
        # A token of a chain is sampled once: what was sent is judged, and subtracted, as it was sampled.
        again = self._fed.root_is_new and not self._step.request.sampling.one_chain
        return super()._root_is_due or again

    def _proposals(self, rows: Logits, depths: Sequence[int], known: Sequence[Sequence[int]]) -> Sequence[Proposals]:
        """Return proposals in the short list: of tokens outside it the head knows nothing, for or against."""
        listed = self._fed.tokens
        inside = [[self._places[token] for token in tokens if token in self._places] for tokens in known]
        found = propose(Distributions(rows[:, listed]), depths, inside, width=self._step.config.width)
        return [tuple((int(listed[place]), chance) for place, chance in proposals) for proposals in found]

    def _take_waiting(self) -> None:
        for message in self._waiting:
            try:
                self._fed.feed(message.tokens, message.position, message.features)
            except ValueError as error:
                if not self._warned:
                    _log.warning("features of the target are left out (logged once): %s", error)
                self._warned = True
            else:
                self._began = True
        self._waiting.clear()
