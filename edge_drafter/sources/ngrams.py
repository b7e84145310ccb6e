"""Earlier answers as a draft source: what followed there may follow again (prompt lookup), and costs no forward."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_drafter.sources import DraftSource
from edge_drafter.step import Step
from edge_drafter.tree import Origin
from speculation.ngrams import Ngrams
from speculation.wire import BeginStep

LEAST_REACH = 0.2
"""Places less likely than this are not looked up."""
MOST_TOKENS = 12
"""Longest proposal."""


class NgramSource(DraftSource):
    """Proposes what followed in an earlier answer, as likely as such tokens were right lately.

    How likely depends on the length of the n-gram that they followed. The verifier gets the newest answers as hints.
    """

    def __init__(self) -> None:
        self._ngrams = Ngrams()
        self._step: Step
        self._lengths: dict[int, int] = {}
        """Nodes of this step that it proposed, and behind how long an n-gram."""

    def announce(self, begin: BeginStep) -> BeginStep:
        return msgspec.structs.replace(begin, hints=self._ngrams.hints)

    def begin(self, step: Step) -> None:
        self._step, self._lengths = step, {}

    def propose(self, node: int) -> None:
        step, tree = self._step, self._step.tree
        if node not in tree:
            return
        if node != tree.root and tree[node].reach < LEAST_REACH:
            return
        prefix = [*step.answer.tokens, *(tree[each].token for each in tree.path_to(node))]
        found = self._ngrams.proposals(prefix, min(MOST_TOKENS, step.selector.room(node)))
        for token, length in zip(*found, strict=True):
            chance = self._ngrams.chance(length)
            is_allowed = step.jump_forward is None or step.jump_forward.allows(node, token)
            if chance < step.config.least or not is_allowed:
                break
            node = tree.add(node, token, chance, Origin.LOOKUP)
            if tree[node].origin is Origin.LOOKUP:
                self._lengths.setdefault(node, length)
            if token in step.answer.ends:
                break

    def judge(self, tokens: Sequence[int]) -> None:
        for place, token in self._step.tree.places(tokens):
            for proposed, child in place.children.items():
                if child in self._lengths:
                    self._ngrams.judged(self._lengths[child], proposed == token)

    def end(self, tokens: Sequence[int]) -> None:
        self._ngrams.remember(tokens)
