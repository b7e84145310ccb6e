"""Drafts in flight: which one the verifier goes on with, and which are void."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.in_flight import SentDraft, SentDrafts
from edge_drafter.tree import Origin, TokenTree
from speculation.wire import Draft


def draft(round: int, anchor: int, nodes: list[int]) -> SentDraft:
    return SentDraft(Draft(1, round, 0, bytes(8), [0] * len(nodes)), anchor, nodes, 1.0, True, False, 0.0, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.0, 0.3, 0.6, 0.9])), max_size=12),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=4),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.1, 0.4]),
)
def test_the_next_roots_are_the_places_next_to_what_is_in_flight(
    additions: list[tuple[int, int, float]], drafts: list[tuple[int, int]], verdict: int, least: float
) -> None:
    """Slow twin: every node that no draft holds, behind one that a draft holds or follows; the likeliest first."""
    tree, sent = TokenTree(), SentDrafts()
    for where, token, chance in additions:
        tree.add(list(tree.ids())[-1 - where % len(tree)], token, chance, Origin.DRAFT)
    for round, (where, limit) in enumerate(drafts, start=1):
        anchor = list(tree.ids())[where % len(tree)]
        sent.add(draft(round, anchor, tree.best_nodes(anchor, limit, 9, 0.0, frozenset())), tree.root)
    for _ in range(2):
        held = {node for each in sent for node in each.nodes}
        near = held | {each.anchor for each in sent}
        places = {
            node: tree[node].reach
            for node in tree.ids()
            if node not in held and tree[node].parent in near and tree[node].reach >= least
        }
        found = list(sent.next_roots(tree, least))
        assert len(found) == len(places) and set(found) == set(places)
        assert [places[node] for node in found] == sorted(places.values(), reverse=True)
        landing = list(tree.ids())[verdict % len(tree)]
        tree.reroot([tree[node].token for node in tree.path_to(landing)])
        sent.decide(1, tree)
