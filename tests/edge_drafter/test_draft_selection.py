"""What is cut out of a tree: a chain or a tree of the best nodes, never more than fits, full or not, and its worth."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import DraftingConfig
from edge_drafter.answer import Answer
from edge_drafter.draft_selection import DraftSelector
from edge_drafter.tree import Origin, TokenTree

END = 7


def selector(
    tree: TokenTree, gamma: int = 4, room: int = 50, max_draft: int = 64, done: int = 0, **changes: object
) -> DraftSelector:
    """Return a selector for an answer of `done` tokens that `room` more may follow."""
    answer = Answer(bytes(8), (END,), done + room, [1] * done)
    return DraftSelector(tree, answer, DraftingConfig(**changes), max_draft, gamma)  # type: ignore[arg-type]


CHANCES = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
TREES = st.lists(st.tuples(st.integers(0, 30), st.integers(5, END), CHANCES), min_size=1, max_size=25)


@settings(max_examples=60)
@given(
    additions=TREES,
    place=st.integers(0, 30),
    gamma=st.integers(0, 6),
    room=st.integers(0, 8),
    max_draft=st.integers(1, 6),
    draft_tokens=st.integers(0, 8),
    stop_below=st.sampled_from([0.0, 0.2, 0.6]),
)
def test_whatever_is_cut_hangs_together_fits_and_is_worth_no_less_when_it_is_longer(
    additions: list[tuple[int, int, float]], place: int, gamma: int, room: int, max_draft: int, draft_tokens: int,
    stop_below: float,
) -> None:  # fmt: skip
    tree = TokenTree()
    for where, token, chance in additions:
        tree.add(list(tree.ids())[where % len(tree)], token, chance, Origin.DRAFT)
    anchor = list(tree.ids())[place % len(tree)]
    settings = {"room": room, "max_draft": max_draft, "stop_below": stop_below, "least": 0.0}
    cut = selector(tree, gamma, draft_tokens=draft_tokens, **settings)  # type: ignore[arg-type]
    nodes = cut.cut(anchor)
    assert all(tree.parent(node) in (anchor, *nodes[:index]) for index, node in enumerate(nodes))
    assert len(nodes) == len(set(nodes)) <= min(max_draft, draft_tokens or gamma)
    assert all(tree.ahead(node) - tree.ahead(anchor) <= cut.room(anchor) for node in nodes)
    assert all(tree.ahead(node) < room for node in nodes), "the verdict's own token has a place"
    inner = {tree.parent(node) for node in nodes} - {anchor}
    assert not any(cut.ends_at(node) for node in inner)
    worths = [cut.value(anchor, nodes[:count]) for count in range(len(nodes) + 1)]
    assert worths == sorted(worths) and worths[-1] <= len(nodes) + 1e-9
    if draft_tokens:
        longer = selector(tree, gamma, draft_tokens=draft_tokens + 1, **settings)  # type: ignore[arg-type]
        assert longer.value(anchor, longer.cut(anchor)) >= worths[-1] - 1e-9
    else:
        assert not any(cut.closes(node) for node in nodes[:-1])
        assert [tree.parent(node) for node in nodes] == [anchor, *nodes][: len(nodes)]
        closed = cut.closes(nodes[-1]) if nodes else cut.ends_at(anchor)
        assert cut.is_full(anchor) is (len(nodes) == cut.need(anchor) or closed)
