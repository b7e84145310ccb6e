"""A tree is what continues the answer of a draft that was sent; it keeps the names of its nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.tree import Tree, continuation
from speculation.wire import ROOT, Draft, parents_of


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(st.lists(st.integers(1, 3), max_size=10))
    return tokens, [draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))]


@given(trees(), st.lists(st.integers(1, 3), max_size=4))
def test_walking_down_keeps_exactly_the_paths_that_continue_the_answer(
    tree: tuple[list[int], list[int]], answer: list[int]
) -> None:
    """Slow twin: list every root path of the sent tree by its tokens; those that start with the answer must remain."""
    tokens, parents = tree
    message = Draft(7, 1, 0, bytes(8), tokens, parents)
    walked = continuation(message, answer) or Tree()

    def paths(tokens: tuple[int, ...], parents: tuple[int, ...]) -> list[tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {ROOT: ()}
        for node, parent in enumerate(parents):
            found[node] = (*found[parent], tokens[node])
        return [path for node, path in found.items() if node != ROOT]

    head = len(answer)
    sent = set(paths(tuple(tokens), tuple(parents_of(message))))
    expected = {path[head:] for path in sent if len(path) > head and list(path[:head]) == answer}
    got = set(paths(walked.tokens, walked.parents))
    assert got <= expected
    siblings = [(parents[node], token) for node, token in enumerate(tokens)]
    if len(set(siblings)) == len(siblings):  # of siblings with one token only the first is walked
        assert got == expected
    for index, node in enumerate(walked.nodes):
        above = walked.parents[index]
        assert tokens[node] == walked.tokens[index]
        assert parents[node] == (walked.origin if above == ROOT else walked.nodes[above])
