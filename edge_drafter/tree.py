"""Keeps everything the edge knows about the future: one token tree behind the last committed token."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Proposals = tuple[tuple[int, float], ...]


class Origin(Enum):
    """An origin is what proposed a token."""

    COMMITTED = "committed"
    DRAFT = "draft"
    """A draft forward."""
    EARLY = "early"
    """An early exit of the target."""
    LOOKUP = "look-up"
    """A source that needs no forward, such as earlier answers."""


@dataclass(slots=True)
class Forward:
    """A draft forward. It is of use as soon as one of the tokens that it took for the likeliest is committed."""

    seconds: float = 0.0
    used: bool = False


class Proposed(NamedTuple):
    """How a draft forward came to propose a token."""

    forward: Forward
    ahead: int
    """How many levels it was behind the root of then."""
    hoped: float
    """The chance, then, that the answer would pass through the leaf and go on with a token that was not there."""


@dataclass(slots=True)
class Node:
    """One possible token."""

    token: int
    parent: int | None
    reach: float
    """Probability that the verified answer passes through it, given the root."""
    chance: float
    """Probability that it follows its parent where the answer passes through that."""
    origin: Origin
    depth: int
    proposals: Proposals | None = None
    """The likeliest next tokens with their probabilities; None until a draft forward was fed with this node."""
    cells: tuple[int, ...] = ()
    """Where `Calibration` counts them."""
    children: dict[int, int] = field(default_factory=dict)
    """The nodes behind it, by their tokens."""
    proposed: Proposed | None = None
    """Where a draft forward proposed it as the likeliest behind a leaf."""
    layers: tuple[int, ...] = ()
    """The exit layers that named it."""


def _reach(item: tuple[int, Node]) -> float:
    return item[1].reach


@dataclass(frozen=True)
class Rerooting:
    """What a commit did to the tree: the nodes now committed, root-first, and the nodes that became impossible.

    The last of `path` is the new root; `path` has one node per committed token, also where the tree did not hold it.
    """

    path: tuple[tuple[int, Node], ...]
    dropped: tuple[Node, ...]


class TokenTree:
    """A tree of tokens whose node ids stay valid until a re-rooting drops them.

    `depth` counts from the first root, so that it orders nodes but is never an answer position.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {0: Node(-1, None, 1.0, 1.0, Origin.COMMITTED, 0)}
        self._next = 1
        self.root = 0
        self.version = 0
        """Changes whenever the nodes, or how likely they are, have changed."""
        self._order: list[tuple[int, Node]] = []
        self._order_of = -1

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node: int) -> Node:
        return self._nodes[node]

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def parent(self, node: int) -> int:
        """Return the parent of a node. KeyError for the root, which has none."""
        parent = self._nodes[node].parent
        if parent is None:
            raise KeyError(f"node {node} is the root")
        return parent

    def ids(self) -> Iterable[int]:
        """Return the ids of all nodes, parents before their children."""
        return tuple(self._nodes)

    def add(self, parent: int, token: int, probability: float, origin: Origin) -> int:
        """Return the child `token` of `parent`; a new one has reach = parent's reach x `probability`."""
        above = self._nodes[parent]
        existing = above.children.get(token)
        if existing is not None:
            return existing
        node = self._next
        self._next += 1
        self.version += 1
        self._nodes[node] = Node(token, parent, above.reach * probability, probability, origin, above.depth + 1)
        above.children[token] = node
        return node

    def condition(self, node: int, probability: float) -> None:
        """Make the probability that the answer passes through `node` this; Bayes gives all others.

        Nodes keep their probability given that the answer passes through `node`, and given that it does not. Raises
        ValueError for the root.
        """
        nodes, before = self._nodes, self._nodes[node].reach
        if nodes[node].parent is None:
            raise ValueError("the root is committed: its chance is 1")
        others = (1.0 - probability) / (1.0 - before) if before < 1.0 else 0.0
        above = 1.0
        for each in self.path_to(node):
            reach = min(above, probability + others * max(0.0, nodes[each].reach - before))
            self._favour(each, reach / above if above > 0.0 else 0.0)
            above = reach
        self._multiply()

    def raise_branch(self, anchor: int, token: int, probability: float, layer: int) -> int:
        """Return the child `token` of `anchor`, which an exit layer named and which is reached with `probability` now.

        A token that the tree has already changes all other nodes as `condition` does. A new one takes its share from
        its siblings, and raises its anchor where that was less likely.
        """
        nodes = self._nodes
        node = nodes[anchor].children.get(token)
        if node is not None:
            self.condition(node, probability)
        else:
            if nodes[anchor].reach < probability:
                self.condition(anchor, probability)
            node = self.add(anchor, token, 0.0, Origin.EARLY)
            self._favour(node, min(1.0, probability / nodes[anchor].reach) if nodes[anchor].reach > 0.0 else 0.0)
            self._multiply()
        nodes[node].layers += (layer,)
        return node

    def rate(self, node: int, chance: float) -> None:
        """Set the probability with which `node` follows its parent; what is drafted behind it changes with it.

        Raises ValueError for the root.
        """
        content = self._nodes[node]
        if content.parent is None:
            raise ValueError("the root is committed: its chance is 1")
        self.version += 1
        content.chance = chance
        self._change(node, self._nodes[content.parent].reach * chance)

    def score(self, node: int, proposals: Proposals, cells: tuple[int, ...] = ()) -> None:
        """Store what a draft forward expects after `node`, likeliest first, and where that is calibrated."""
        content = self._nodes[node]
        content.proposals, content.cells = proposals, cells

    def new_behind(self, leaf: int) -> float:
        """Return the chance that the answer passes through `leaf` and goes on with a token that is not there yet."""
        content = self._nodes[leaf]
        known = sum([self._nodes[child].chance for child in content.children.values()])
        return content.reach * max(0.0, 1.0 - known)

    def ahead(self, node: int) -> int:
        """Return how many levels behind the root `node` is."""
        return self._nodes[node].depth - self._nodes[self.root].depth

    def likeliest_path(self, node: int, limit: int, ends: frozenset[int] = frozenset()) -> list[int]:
        """Return at most `limit` nodes behind `node`, each the likeliest child of the one before.

        Stops after a token in `ends`: nothing follows the end of an answer.
        """
        nodes, path = self._nodes, list[int]()
        while len(path) < limit:
            content = nodes[node]
            if not content.children or (path and content.token in ends):
                break
            best = -1.0
            # Children get their ids in the order in which they come here: of equals the older one stays.
            for child in content.children.values():
                if nodes[child].reach > best:
                    node, best = child, nodes[child].reach
            path.append(node)
        return path

    def likeliest_first(self, anchor: int, depth: int, least: float, ends: frozenset[int]) -> Iterator[int]:
        """Yield the nodes behind `anchor`, the likeliest first and so parents before their children.

        None deeper than `depth` behind it, none whose reach given the anchor is below `least`, none behind a token in
        `ends`. The tree must not change meanwhile.
        """
        return (
            self._behind_root(depth, least, ends) if anchor == self.root else self._behind(anchor, depth, least, ends)
        )

    def _behind_root(self, depth: int, least: float, ends: frozenset[int]) -> Iterator[int]:
        """Yield them behind the root, out of one sorting a version: no node is likelier, or older, than its parent."""
        if self._order_of != self.version:
            # Nodes come here in the order of their ids, and sorting keeps that of equals: parents before children.
            likeliest = sorted(self._nodes.items(), key=_reach, reverse=True)
            # The root comes first, and is not behind itself.
            self._order = likeliest[1:]
            self._order_of = self.version
        root = self._nodes[self.root]
        floor = least * root.reach
        deepest = root.depth + depth
        closed: set[int] = set()
        for node, content in self._order:
            if content.reach < floor:
                return
            if content.parent in closed:
                closed.add(node)
                continue
            if content.token in ends:
                closed.add(node)
            if content.depth <= deepest:
                yield node

    def _behind(self, anchor: int, depth: int, least: float, ends: frozenset[int]) -> Iterator[int]:
        nodes = self._nodes
        floor = least * nodes[anchor].reach
        waiting: list[tuple[float, int, int]] = []
        node, left = anchor, depth
        while True:
            if left > 0 and (node == anchor or nodes[node].token not in ends):
                for child in nodes[node].children.values():
                    reach = nodes[child].reach
                    if reach >= floor:
                        heapq.heappush(waiting, (-reach, child, left - 1))
            if not waiting:
                return
            _, node, left = heapq.heappop(waiting)
            yield node

    def path_to(self, node: int) -> list[int]:
        """Return the nodes from the root's child to `node`; empty for the root."""
        path: list[int] = []
        current = node
        while current != self.root:
            path.append(current)
            current = self.parent(current)
        return path[::-1]

    def places(self, tokens: Sequence[int]) -> Iterator[tuple[Node, int]]:
        """Yield each of `tokens`, which follow the root, with the node in front of it, as far as the tree has that."""
        node: int | None = self.root
        for token in tokens:
            if node is None:
                return
            yield self._nodes[node], token
            node = self._nodes[node].children.get(token)

    def reroot(self, tokens: Sequence[int]) -> Rerooting:
        """Make `tokens`, which follow the root, committed. Reach becomes the probability given the new root."""
        if not tokens:
            return Rerooting((), ())
        path: list[int] = []
        for token in tokens:
            path.append(self.add(path[-1] if path else self.root, token, 0.0, Origin.COMMITTED))
        landing = path[-1]
        committed = tuple((node, self._nodes[node]) for node in path)
        spared = {self.root, *path}
        scale = self._nodes[landing].reach
        kept = {landing: self._nodes[landing]}
        lost: list[Node] = []
        for node, content in self._nodes.items():  # parents come before their children
            if content.parent in kept:
                kept[node] = content
                content.reach = min(1.0, content.reach / scale) if scale > 0.0 else 0.0
            elif node not in spared:
                lost.append(content)
        self._nodes = kept
        self._nodes[landing].reach = self._nodes[landing].chance = 1.0
        self._nodes[landing].parent = None
        self.root = landing
        self.version += 1
        return Rerooting(committed, tuple(lost))

    def _favour(self, node: int, chance: float) -> None:
        """Set the chance of `node` and scale its siblings' to what is left. Reach is out of date after it."""
        nodes, content = self._nodes, self._nodes[node]
        left = (1.0 - chance) / (1.0 - content.chance) if content.chance < 1.0 else 0.0
        for sibling in nodes[self.parent(node)].children.values():
            nodes[sibling].chance = min(1.0, nodes[sibling].chance * left)
        content.chance = chance

    def _multiply(self) -> None:
        """Compute every node's reach out of the chances on its path."""
        nodes = self._nodes
        self.version += 1
        for content in nodes.values():  # parents come before their children
            if content.parent is not None:
                content.reach = nodes[content.parent].reach * content.chance

    def _change(self, node: int, reach: float) -> None:
        """Give a node another reach, and what is behind it in proportion; rounding makes no child likelier."""
        nodes = self._nodes
        factor = reach / nodes[node].reach if nodes[node].reach > 0.0 else 1.0
        nodes[node].reach = reach
        for each in self._below(node):
            content = nodes[each]
            content.reach = min(nodes[self.parent(each)].reach, content.reach * factor)

    def _below(self, node: int) -> list[int]:
        below = list(self._nodes[node].children.values())
        for each in below:
            below += self._nodes[each].children.values()
        return below
