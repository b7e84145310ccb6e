"""Drafts that have left and are not decided yet: what the verifier may hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edge_drafter.tree import TokenTree
from speculation.wire import Draft


@dataclass
class Flight:
    """A draft behind tree node `anchor`. `nodes` are its tree nodes, `value` its expected accepted tokens.

    full: it had gamma tokens, or its end, when it left. ahead: it left before its anchor was committed. begun: an exit
    spoke about it, so that its verification runs.
    """

    message: Draft
    anchor: int
    nodes: list[int]
    value: float
    full: bool
    ahead: bool
    sent_at: float
    repeated_at: float
    begun: bool = False

    def covers(self, node: int, tree: TokenTree) -> bool:
        """Whether a verifier that stands at `node` can go on with this draft."""
        if node == self.anchor:
            return True
        inside = set(self.nodes)
        return node in inside and not inside.isdisjoint(tree[node].children.values())


class Flights:
    """Flights by round. `current` is the newest that leads on from the root: the one that is or will be verified."""

    def __init__(self) -> None:
        self._by_round: dict[int, Flight] = {}
        self._inside: set[int] = set()
        self._anchors: set[int] = set()
        self.current: Flight | None = None

    def __len__(self) -> int:
        return len(self._by_round)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._by_round.values())

    def get(self, round: int) -> Flight | None:
        """Return the flight of a round; None for one that is decided."""
        return self._by_round.get(round)

    def at(self, anchor: int) -> Flight | None:
        """Return the newest flight behind `anchor`."""
        found = (flight for flight in reversed(self._by_round.values()) if flight.anchor == anchor)
        return next(found, None)

    def add(self, flight: Flight, root: int) -> None:
        """Take in a draft that leaves now."""
        self._by_round[flight.message.round] = flight
        self._inside.update(flight.nodes)
        self._anchors.add(flight.anchor)
        if flight.anchor == root:
            self.current = flight

    def land(self, round: int, tree: TokenTree) -> None:
        """The tree was re-rooted by the verdict on `round`: forget it, and every draft that is void now."""
        root = tree.root
        self._by_round = {
            number: flight
            for number, flight in self._by_round.items()
            if number != round and (flight.covers(root, tree) or (flight.anchor in tree and flight.anchor != root))
        }
        self._inside = {node for flight in self for node in flight.nodes}
        self._anchors = {flight.anchor for flight in self}
        current = (flight for flight in reversed(self._by_round.values()) if flight.covers(root, tree))
        self.current = next(current, None)

    def landings(self, tree: TokenTree, least: float = 0.0) -> Iterator[int]:
        """Yield the nodes, of a reach of at least `least`, where a verdict on these drafts may come down.

        The likeliest first; the tree must not change meanwhile.
        """
        inside, anchors = self._inside, self._anchors
        for node in tree.likeliest_first(tree.root, len(tree), least, frozenset()):
            if node not in inside:
                parent = tree[node].parent
                if parent in anchors or parent in inside:
                    yield node
