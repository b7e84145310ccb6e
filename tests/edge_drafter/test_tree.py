from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.tree import Origin, TokenTree

Path = tuple[int, ...]


class SlowTree:
    """The twin: every node is the tuple of tokens that leads to it; re-rooting is a comparison of prefixes."""

    def __init__(self) -> None:
        self.reach: dict[Path, float] = {(): 1.0}
        self.chance: dict[Path, float] = {(): 1.0}

    def add(self, path: Path, token: int, probability: float) -> None:
        self.reach.setdefault((*path, token), self.reach[path] * probability)
        self.chance.setdefault((*path, token), probability)

    def condition(self, path: Path, probability: float) -> None:
        """P(x) = P(node) P(x | node) + (1 - P(node)) P(x | not node), for every x."""
        before = self.reach[path]
        others = (1.0 - probability) / (1.0 - before) if before < 1.0 else 0.0
        way, left = [], 1.0
        for end in range(1, len(path) + 1):
            above = path[:end]
            way.append(min(left, probability + others * max(0.0, self.reach[above] - before)))
            left = way[-1]
        for end, reach in enumerate(way):
            parent_reach = way[end - 1] if end else 1.0
            self._favour(path[: end + 1], reach / parent_reach if parent_reach else 0.0)
        self._multiply()

    def raise_branch(self, path: Path, token: int, probability: float) -> None:
        if (*path, token) in self.reach:
            self.condition((*path, token), probability)
            return
        if self.reach[path] < probability:
            self.condition(path, probability)
        self.add(path, token, 0.0)
        self._favour((*path, token), min(1.0, probability / self.reach[path]) if self.reach[path] else 0.0)
        self._multiply()

    def _favour(self, path: Path, chance: float) -> None:
        old = self.chance[path]
        left = (1.0 - chance) / (1.0 - old) if old < 1.0 else 0.0
        for sibling in self.chance:
            if sibling != path and len(sibling) == len(path) and sibling[:-1] == path[:-1]:
                self.chance[sibling] = min(1.0, self.chance[sibling] * left)
        self.chance[path] = chance

    def _multiply(self) -> None:
        for path in sorted(self.reach, key=len):
            if path:
                self.reach[path] = self.reach[path[:-1]] * self.chance[path]

    def rate(self, path: Path, chance: float) -> None:
        before, after = self.reach[path], self.reach[path[:-1]] * chance
        if before > 0.0:
            self._scale(path, after / before)
        self.reach[path], self.chance[path] = after, chance

    def _scale(self, path: Path, factor: float) -> None:
        for below in self.reach:
            if below[: len(path)] == path and below != path:
                self.reach[below] = min(1.0, self.reach[below] * factor)

    def reroot(self, tokens: Path) -> set[Path]:
        for end in range(1, len(tokens) + 1):
            self.add(tokens[: end - 1], tokens[end - 1], 0.0)
        scale = self.reach[tokens]
        kept = {p: r for p, r in self.reach.items() if p[: len(tokens)] == tokens}
        lost = {p for p in self.reach if p not in kept and tokens[: len(p)] != p}
        self.reach = {p[len(tokens) :]: min(1.0, r / scale) if scale else 0.0 for p, r in kept.items()}
        self.chance = {p[len(tokens) :]: self.chance[p] for p in kept}
        self.reach[()] = self.chance[()] = 1.0
        return lost


def paths(tree: TokenTree) -> dict[Path, int]:
    return {tuple(tree[each].token for each in tree.path_to(node)): node for node in tree.ids()}


TOKENS = st.integers(0, 2)
# The quotient of two subnormal numbers overflows, in the twin as in the tree.
CHANCE = st.floats(0.0, 1.0, allow_subnormal=False)
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("raise"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("condition"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("rate"), st.integers(0, 30), TOKENS, CHANCE),
        st.tuples(st.just("reroot"), st.lists(TOKENS, min_size=1, max_size=4)),
    ),
    max_size=40,
)


@settings(max_examples=60)
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
            elif command[0] == "rate":
                if path:
                    tree.rate(node, chance)
                    twin.rate(path, chance)
            elif command[0] == "condition":
                if path:
                    tree.condition(node, chance)
                    twin.condition(path, chance)
            else:
                tree.raise_branch(node, token, chance, layer=1)
                twin.raise_branch(path, token, chance)
        assert {path: tree[node].reach for path, node in paths(tree).items()} == pytest.approx(twin.reach)
        assert {path: tree[node].chance for path, node in paths(tree).items()} == pytest.approx(twin.chance)
        for node in tree.ids():
            parent = tree[node].parent
            assert parent is None or (tree[node].reach <= tree[parent].reach and parent < node)
        # From the root they come out of one sorting, which is right as long as the line above is.
        for depth, least, ends in ((2, 0.1, frozenset({0})), (40, 0.0, frozenset[int]())):
            walked = list(tree._behind(tree.root, depth, least, ends))
            assert list(tree.likeliest_first(tree.root, depth, least, ends)) == walked


def test_conditioning_is_bayes_rule_over_whole_answers() -> None:
    """Against the sum over all answers: four of two tokens, and what else may follow."""
    tree = TokenTree()
    nodes = {(): tree.root}
    for path, chance in (((1,), 0.6), ((2,), 0.3), ((1, 3), 0.5), ((1, 4), 0.25), ((2, 3), 0.8), ((1, 3, 5), 0.5)):
        nodes[path] = tree.add(nodes[path[:-1]], path[-1], chance, Origin.DRAFT)
    before = {path: tree[node].reach for path, node in nodes.items()}
    tree.condition(nodes[1, 3], 0.9)
    for path, node in nodes.items():
        within = before[1, 3] if path == (1, 3)[: len(path)] else before[path] if path[:2] == (1, 3) else 0.0
        share_in, share_out = within / before[1, 3], (before[path] - within) / (1.0 - before[1, 3])
        assert tree[node].reach == pytest.approx(0.9 * share_in + 0.1 * share_out)
