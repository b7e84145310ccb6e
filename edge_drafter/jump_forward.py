"""Jump-forward drafting: the tokens that an answer's grammar leaves no choice about take no draft forward."""

from __future__ import annotations

from collections.abc import Sequence

from edge_drafter.tree import Origin, TokenTree
from speculation.language.grammar import Automaton, State

CERTAIN, LIKELY = 1.0, 0.95
"""How likely a token is whose text is settled: no other is allowed, or others spell the beginning of the same text."""


class JumpForward:
    """Where in its grammar every node of a step's tree stands; adds the tokens whose text is settled to the tree."""

    def __init__(self, grammar: Automaton, tree: TokenTree, committed: Sequence[int], max_tokens: int) -> None:
        """`tree` stands behind the tokens `committed` of an answer of at most `max_tokens`."""
        self._grammar = grammar
        self._tree = tree
        self._root = grammar.after(committed, max_tokens)
        self._states: dict[int, State | None] = {}

    def follow(self, tokens: Sequence[int]) -> None:
        """Follow the tree, which was re-rooted behind these tokens."""
        for token in tokens:
            self._root = None if self._root is None else self._grammar.next(self._root, token)
        self._states = {node: state for node, state in self._states.items() if node in self._tree}

    @property
    def only(self) -> int | None:
        """The answer's next token, where no other is allowed."""
        return None if self._root is None else self._grammar.allowed(self._root).only

    def allows(self, node: int, token: int) -> bool:
        """Whether a token may follow a node."""
        state = self._state(node)
        return state is None or bool(self._grammar.allowed(state).mask[token])

    def lengthen(self, node: int, most: int) -> None:
        """Add at most `most` tokens behind a node, for as long as the grammar has settled the text."""
        tree = self._tree
        for _ in range(most):
            state = self._state(node)
            found = None if state is None else self._grammar.allowed(state)
            if found is None or found.spelled is None:
                return
            chance = CERTAIN if found.only is not None else LIKELY
            node = tree.add(node, found.spelled, chance, Origin.LOOKUP)

    def _state(self, node: int) -> State | None:
        tree, states = self._tree, self._states
        if node == tree.root:
            return self._root
        if node not in states:
            above = self._state(tree.parent(node))
            states[node] = None if above is None else self._grammar.next(above, tree[node].token)
        return states[node]
