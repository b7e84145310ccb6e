from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, StepRequest
from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.sources.model import ModelSource, propose
from edge_drafter.step import Step
from edge_drafter.tree import Rerooting, TokenTree
from speculation.distributions import Distributions
from speculation.sampling import GREEDY, SamplingScheme
from tests.edge_drafter.fakes import EOS, FakeClock, FakeModel, hashed_target
from tests.speculation.test_predictor import network


def begun(source: ModelSource, sampling: SamplingScheme = GREEDY, **changes: int) -> TokenTree:
    """Begin a step with this source; return its token tree."""
    request = StepRequest(1, "p", b"j", (EOS,), sampling=sampling)
    config = DraftingConfig(**changes)  # type: ignore[arg-type]
    step = Step(config, request, AcceptanceStats(config), FakeClock())
    source.begin(step)
    source.read()
    return step.tree


@given(
    st.integers(0, 1000),
    st.lists(
        st.one_of(
            st.tuples(st.just("feed"), st.integers(0, 20)),
            st.tuples(st.just("early"), st.integers(0, 20), st.integers(0, 6)),
            st.tuples(st.just("commit"), st.integers(0, 20), st.integers(0, 6)),
        ),
        max_size=30,
    ),
)
def test_whatever_survives_commits_is_what_the_model_says_from_scratch(
    seed: int, commands: list[tuple[object, ...]]
) -> None:
    """The fake model also checks that every id names the right prefix and that nothing is fed twice."""
    model = hashed_target(seed)
    source = ModelSource(FakeModel(model))
    tree = begun(source)
    committed: list[int] = []
    waiting: list[Rerooting] = []
    for command in commands:
        nodes = list(tree.ids())
        assert isinstance(command[1], int)
        node = nodes[command[1] % len(nodes)]
        if command[0] == "feed":
            for rerooting in waiting:
                source.commit(rerooting, None)
            waiting.clear()
            if tree[node].proposals is None:
                source.grow([node])
        elif command[0] == "early":
            assert isinstance(command[2], int)
            tree.raise_branch(node, command[2], 0.5, layer=1)
        else:
            assert isinstance(command[2], int)
            tokens = [*(tree[each].token for each in tree.path_to(node)), command[2]]
            waiting.append(tree.reroot(tokens))
            committed += tokens
        for each in tree.ids():
            proposals = tree[each].proposals
            prefix = [*committed, *(tree[above].token for above in tree.path_to(each))]
            assert proposals is None or proposals[0][0] == model(prefix)


@given(
    st.lists(st.lists(st.integers(-30, 30), min_size=5, max_size=5), min_size=1, max_size=6),
    st.integers(1, 7),
    st.sets(st.integers(0, 4)),
    st.booleans(),
)
def test_rows_propose_what_each_would_alone(
    logits: list[list[int]], width: int, also: set[int], has_predictor: bool
) -> None:
    """The twin makes one proposal after another, from a sorted softmax."""
    predictor = network(1) if has_predictor else None
    rows = np.array(logits) / 3.0
    depths = list(range(1, len(rows) + 1))
    for row, depth, found in zip(
        rows, depths, propose(Distributions(rows), depths, [tuple(also)] * len(rows), predictor, width), strict=True
    ):
        softmax = np.exp(row) / np.exp(row).sum()
        ranked = sorted(range(5), key=lambda token: (-row[token], token))
        first = softmax[ranked[0]] if predictor is None else predictor.chance(row, depth)
        rest = (1 - first) / (1 - softmax[ranked[0]])
        tokens = ranked[:width] + [token for token in also if token not in ranked[:width]]
        assert [token for token, _ in found] == tokens
        expected = [first, *(rest * softmax[token] for token in tokens[1:])]
        assert [chance for _, chance in found] == pytest.approx(expected, abs=1e-9)


def committed(source: ModelSource, tree: TokenTree, tokens: list[int]) -> None:
    """Commit as `StepDrafter` does: the verdict while the tree stands, what follows it afterwards."""
    source.judge(tokens)
    source.commit(tree.reroot(tokens), None)
