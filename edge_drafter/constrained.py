"""A draft model under a grammar, and the tokens that the grammar leaves no choice about."""

from __future__ import annotations

from collections.abc import Sequence

from edge_drafter.protocols import DraftModel
from edge_drafter.tree import Origin, TokenTree
from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.language.grammar import Automaton, State, masked
from speculation.wire import ROOT, Jpegs

CERTAIN, LIKELY = 1.0, 0.95
"""How likely a token is whose text is settled: no other is allowed, or others spell the beginning of the same text."""


class ConstrainedModel:
    """A `DraftModel` whose logits are masked as the target's are: -inf for tokens that may not follow.

    Where the answer has left the grammar logits stay as they are: a draft there is rejected in any case.
    """

    def __init__(self, model: DraftModel, grammar: Automaton, max_tokens: int) -> None:
        """`max_tokens` of an answer."""
        self._model = model
        self._grammar = grammar
        self._max_tokens = max_tokens
        self._root: State | None = None
        self._nodes: list[State | None] = []

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """See `DraftModel.begin`."""
        self._root, self._nodes = self._grammar.after(committed, self._max_tokens), []
        self._model.begin(prompt, image, committed, stop)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`."""
        row: Logits = self._masked(self._model.root_logits(stop)[None], [self._root])[0]
        return row

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`."""
        rows = self._model.extend(tokens, parents, stop)
        first = len(self._nodes)
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append(self._next(self._root if parent == ROOT else self._nodes[parent], token))
        return self._masked(rows, self._nodes[first:])

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`."""
        renamed = self._model.commit(path, next_token)
        self._root = self._next(self._nodes[path[-1]] if path else self._root, next_token)
        kept = sorted((new, old) for old, new in renamed.items() if new != ROOT)
        self._nodes = [self._nodes[old] for _, old in kept]
        return renamed

    def _next(self, state: State | None, token: int) -> State | None:
        return None if state is None else self._grammar.next(state, token)

    def _masked(self, rows: Logits, states: Sequence[State | None]) -> Logits:
        """Return new rows: the model may keep its own for the time when one of these nodes is the root."""
        return masked(rows, [None if state is None else self._grammar.allowed(state).mask for state in states])


class Settled:
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
