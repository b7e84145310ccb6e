from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.drafting.tree import Origin, TokenTree

Path = tuple[int, ...]


class SlowTree:
    """The twin: every node is the tuple of tokens that leads to it; re-rooting is a comparison of prefixes."""

    def __init__(self) -> None:
        self.reach: dict[Path, float] = {(): 1.0}

    def add(self, path: Path, token: int, probability: float) -> None:
        self.reach.setdefault((*path, token), self.reach[path] * probability)

    def raise_branch(self, path: Path, token: int, confidence: float) -> None:
        landing = (*path, token)
        before = self.reach.setdefault(landing, 0.0)
        if 0.0 < before < confidence:
            for below in [p for p in self.reach if p[: len(landing)] == landing and p != landing]:
                self.reach[below] = min(1.0, self.reach[below] * (confidence / before))
        for end in range(len(path) + 2):
            above = (*path, token)[:end]
            self.reach[above] = max(self.reach[above], confidence)

    def reroot(self, tokens: Path) -> set[Path]:
        for end in range(1, len(tokens) + 1):
            self.reach.setdefault(tokens[:end], 0.0)
        scale = self.reach[tokens]
        kept = {p: r for p, r in self.reach.items() if p[: len(tokens)] == tokens}
        lost = {p for p in self.reach if p not in kept and tokens[: len(p)] != p}
        self.reach = {p[len(tokens) :]: min(1.0, r / scale) if scale else 0.0 for p, r in kept.items()}
        self.reach[()] = 1.0
        return lost


def paths(tree: TokenTree) -> dict[Path, int]:
    return {tuple(tree[each].token for each in tree.path_to(node)): node for node in tree.ids()}


TOKENS = st.integers(0, 2)
CHANCE = st.floats(0.0, 1.0)
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("raise"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("reroot"), st.lists(TOKENS, min_size=1, max_size=4)),
    ),
    max_size=40,
)


@given(COMMANDS)
def test_any_history_gives_the_twins_tree(commands: list[tuple[object, ...]]) -> None:
    tree, twin = TokenTree(), SlowTree()
    for command in commands:
        if command[0] == "reroot":
            tokens = command[1]
            assert isinstance(tokens, list)
            known = paths(tree)
            before = {node: tree[node] for node in tree.ids()}
            result = tree.reroot(tokens)
            lost = twin.reroot(tuple(tokens))
            assert [content.token for _, content in result.path] == tokens
            assert {id(content) for content in result.dropped} == {id(before[known[path]]) for path in lost}
        else:
            _, place, token, chance = command
            assert isinstance(place, int) and isinstance(token, int) and isinstance(chance, float)
            ordered = sorted(paths(tree).items())
            path, node = ordered[place % len(ordered)]
            if command[0] == "add":
                tree.add(node, token, chance, Origin.DRAFT)
                twin.add(path, token, chance)
            else:
                tree.raise_branch(node, token, chance, layer=1)
                twin.raise_branch(path, token, chance)
        assert {path: tree[node].reach for path, node in paths(tree).items()} == pytest.approx(twin.reach)
        for node in tree.ids():
            parent = tree[node].parent
            assert parent is None or tree[node].reach <= tree[parent].reach + 1e-12


def test_survivors_keep_their_ids_and_proposals() -> None:
    tree = TokenTree()
    a = tree.add(tree.root, 1, 0.5, Origin.DRAFT)
    b = tree.add(a, 2, 0.5, Origin.DRAFT)
    tree.score(b, ((3, 0.9),))
    other = tree.add(tree.root, 9, 0.5, Origin.DRAFT)
    tree.reroot([1])
    assert tree.root == a and b in tree and other not in tree
    assert tree[b].proposals == ((3, 0.9),) and tree[b].reach == pytest.approx(0.5)


def test_frontier_is_best_first_and_holds_only_what_the_draft_has_not_seen() -> None:
    tree = TokenTree()
    tree.score(tree.root, ((1, 0.6),))
    likely = tree.add(tree.root, 1, 0.6, Origin.DRAFT)
    rumour = tree.raise_branch(tree.root, 2, 0.8, layer=3)
    deep = tree.add(likely, 3, 0.9, Origin.DRAFT)
    assert tree.frontier() == [rumour, likely, deep]
    tree.score(rumour, ((5, 1.0),))
    assert tree.frontier() == [likely, deep]


def test_a_rumour_raises_its_whole_path_and_lowers_nothing() -> None:
    tree = TokenTree()
    a = tree.add(tree.root, 1, 0.2, Origin.DRAFT)
    b = tree.raise_branch(a, 4, 0.7, layer=2)
    assert tree[a].reach == tree[b].reach == 0.7
    assert tree.raise_branch(a, 4, 0.3, layer=5) == b
    assert tree[b].reach == 0.7 and tree[b].layers == (2, 5)


def test_likeliest_path_stops_at_the_end_of_an_answer() -> None:
    tree = TokenTree()
    a = tree.add(tree.root, 1, 0.5, Origin.DRAFT)
    end = tree.add(a, 7, 0.9, Origin.DRAFT)
    tree.add(a, 2, 0.1, Origin.DRAFT)
    beyond = tree.add(end, 3, 1.0, Origin.DRAFT)
    assert tree.likeliest_path(tree.root, 5, frozenset({7})) == [a, end]
    assert tree.likeliest_path(tree.root, 5) == [a, end, beyond]
    assert tree.likeliest_path(tree.root, 1) == [a]
