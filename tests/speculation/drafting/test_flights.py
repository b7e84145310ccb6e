"""Drafts in flight: which one the verifier goes on with, and which are void."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculation.drafting.flights import Flight, Flights
from speculation.drafting.tree import Origin, TokenTree
from speculation.wire import Draft


def flight(round: int, anchor: int, nodes: list[int]) -> Flight:
    return Flight(Draft(1, round, 0, bytes(8), [0] * len(nodes)), anchor, nodes, 1.0, True, False, 0.0, 0.0)


def chain(tree: TokenTree, node: int, tokens: list[int]) -> list[int]:
    nodes: list[int] = []
    for token in tokens:
        node = tree.add(node, token, 0.5, Origin.DRAFT)
        nodes.append(node)
    return nodes


def test_a_landing_on_a_draft_that_left_ahead_makes_it_current() -> None:
    tree, flights = TokenTree(), Flights()
    first = chain(tree, tree.root, [1, 2])
    bonus, *second = chain(tree, first[-1], [3, 4, 5])
    (other,) = chain(tree, first[0], [9])
    flights.add(flight(1, tree.root, first), tree.root)
    flights.add(flight(2, bonus, second), tree.root)
    assert list(flights.landings(tree)) == [other, bonus] and flights.current is flights.get(1)
    tree.reroot([1, 2, 3])
    flights.land(1, tree)
    assert flights.current is flights.get(2) and len(flights) == 1


def test_a_landing_elsewhere_voids_what_left_ahead() -> None:
    tree, flights = TokenTree(), Flights()
    first = chain(tree, tree.root, [1, 2])
    bonus, *second = chain(tree, first[-1], [3, 4])
    flights.add(flight(1, tree.root, first), tree.root)
    flights.add(flight(2, bonus, second), tree.root)
    tree.reroot([1, 7])
    flights.land(1, tree)
    assert flights.current is None and len(flights) == 0


def test_a_token_that_the_verifier_decoded_alone_leaves_the_rest_of_a_draft_in_flight() -> None:
    tree, flights = TokenTree(), Flights()
    flights.add(flight(1, tree.root, chain(tree, tree.root, [1, 2])), tree.root)
    tree.reroot([1])
    flights.land(0, tree)
    assert flights.current is flights.get(1)
    tree.reroot([2])
    flights.land(0, tree)
    assert flights.current is None


@given(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 6))
def test_what_is_current_leads_on_from_the_root(answer: list[int], wrong: int, size: int) -> None:
    """A chain draft, then a verdict that leaves it somewhere: it is current iff untouched tokens of it remain."""
    tree, flights = TokenTree(), Flights()
    tokens = [1 - t if place == wrong else t for place, t in enumerate(answer[:size])]
    flights.add(flight(1, tree.root, chain(tree, tree.root, tokens)), tree.root)
    tree.reroot(answer)
    flights.land(0, tree)
    leads_on = tokens[: len(answer)] == answer and len(tokens) > len(answer)
    assert (flights.current is not None) == leads_on
