"""Tree: what a draft proposes behind the end of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from speculation.wire import ROOT, Draft, parents_of


class ForeignDraft(ValueError):
    """A draft about a prompt, image or committed answer that this step does not have: the edge must begin again."""


@dataclass(frozen=True)
class Tree:
    """A tree is what to verify after the answer's last token: a draft, or nothing (`round` 0) to decode one token."""

    round: int = 0
    """The draft's round; 0 for what the verifier proposes by itself."""
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    """`parents[i]` < i is the index here of the token before token i, ROOT for the answer's last."""
    nodes: tuple[int, ...] = ()
    """`nodes[i]` is token i's node in the draft as it was sent."""
    origin: int = ROOT
    """The node of the answer's last token in the draft as it was sent."""
    reach: tuple[float, ...] = ()
    """The drafting model's probability of each token's path, where it is known."""

    @classmethod
    def own(cls, tokens: Sequence[int], parents: Sequence[int], reach: Sequence[float] = ()) -> Tree:
        """Return a tree that the verifier proposes by itself."""
        return cls(0, tuple(tokens), tuple(parents), tuple(range(len(tokens))), reach=tuple(reach))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Tree:
        """Return a chain that the verifier proposes by itself."""
        return cls.own(tokens, range(ROOT, len(tokens) - 1))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """How deep the first 0, 1, 2, ... tokens reach."""
        if self.parents == tuple(range(ROOT, len(self.parents) - 1)):
            return tuple(range(1 + len(self.parents)))
        depths: list[int] = []
        deepest = [0]
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            deepest.append(max(deepest[-1], depths[-1]))
        return tuple(deepest)

    def path(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of as many of these tokens, which follow the root, as it holds as a path."""
        node, found = ROOT, list[int]()
        for token in tokens:
            below = (n for n, parent in enumerate(self.parents) if parent == node and self.tokens[n] == token)
            node = next(below, ROOT)
            if node == ROOT:
                break
            found.append(node)
        return tuple(found)

    def sent_node(self, path: Sequence[int]) -> int | None:
        """Return the end of a path, by indices here, as the node that the edge knows; None where it knows none.

        Of what the verifier proposes by itself it knows the root alone.
        """
        if not path:
            return self.origin
        return self.nodes[path[-1]] if self.round and path[-1] < len(self.nodes) else None

    def head(self, size: int) -> Tree:
        """Return the tree of the first `size` tokens."""
        if size >= len(self.tokens):
            return self
        parts = {name: getattr(self, name)[:size] for name in ("tokens", "parents", "nodes", "reach")}
        return replace(self, **parts)


NOTHING = Tree()
"""No draft: decode one token."""


def continuation(draft: Draft, answer: Sequence[int]) -> Tree | None:
    """Return what of a draft continues the answer; None where the answer left the draft or used it up.

    The draft must start at or before the answer's end, behind a prefix of it.
    """
    if draft.parents is None:
        return _rest_of_chain(draft, answer[draft.start :])
    parents = parents_of(draft)
    root = ROOT
    for token in answer[draft.start :]:
        below = (n for n, parent in enumerate(parents) if parent == root and draft.tokens[n] == token)
        found = next(below, None)
        if found is None:
            return None
        root = found
    if root != ROOT and root not in parents:
        return None
    index = {root: ROOT}
    nodes: list[int] = []
    for node, parent in enumerate(parents):
        if parent in index:
            index[node] = len(nodes)
            nodes.append(node)
    return Tree(
        round=draft.round,
        tokens=tuple(draft.tokens[node] for node in nodes),
        parents=tuple(index[parents[node]] for node in nodes),
        nodes=tuple(nodes),
        origin=root,
    )


def _rest_of_chain(draft: Draft, passed: Sequence[int]) -> Tree | None:
    """Return what `continuation` does, for a chain that passed these tokens: most drafts are chains."""
    count, size = len(passed), len(draft.tokens)
    if list(passed) != draft.tokens[:count] or count == size > 0:
        return None
    rest = draft.tokens[count:]
    parents = tuple(range(ROOT, len(rest) - 1))
    return Tree(draft.round, tuple(rest), parents, tuple(range(count, size)), count - 1 if count else ROOT)
