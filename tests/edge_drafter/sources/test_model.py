from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, StepRequest
from edge_drafter.calibration import FIRST_FIT
from edge_drafter.controller import Controller
from edge_drafter.sources.model import ModelSource, propose
from edge_drafter.step import Step
from edge_drafter.tree import Origin, Rerooting, TokenTree
from speculation.distributions import Distributions
from speculation.sampling import GREEDY, Coupled, SamplingScheme
from tests.edge_drafter.fakes import EOS, FakeClock, FakeModel, hashed_target
from tests.speculation.test_predictor import network


def begun(source: ModelSource, sampling: SamplingScheme = GREEDY, **changes: int) -> TokenTree:
    """Begin a step with this source; return its token tree."""
    request = StepRequest(1, "p", b"j", (EOS,), sampling=sampling)
    step = Step(DraftingConfig(**changes), request, Controller(None), FakeClock())  # type: ignore[arg-type]
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


def test_unfed_ancestors_ride_in_the_same_forward() -> None:
    model = FakeModel(hashed_target(1))
    source = ModelSource(model)
    tree = begun(source)
    named = tree.raise_branch(tree.root, 3, 0.9, layer=1)
    deeper = tree.add(named, 4, 0.5, Origin.DRAFT)
    source.grow([deeper])
    assert model.forwards == 1 and model.nodes == [[3], [3, 4]]
    assert tree[named].proposals is not None


def test_a_fed_node_that_becomes_the_root_keeps_what_was_drafted_behind_it() -> None:
    model = FakeModel(hashed_target(1))
    source = ModelSource(model)
    tree = begun(source)
    source.grow([tree.root])
    (first,) = tree.likeliest_path(tree.root, 1)
    source.grow([first])
    (second,) = tree.likeliest_path(first, 1)
    source.grow([second])
    before = model.forwards
    source.commit(tree.reroot([tree[first].token]), None)
    assert tree.likeliest_path(tree.root, 5)[0] == second
    source.grow([tree.likeliest_path(tree.root, 5)[-1]])
    assert model.forwards == before + 1


def test_proposals_are_the_softmax_of_the_logits() -> None:
    logits = np.array([1.0, 4.0, 2.0])
    (((token, probability),),) = propose(Distributions(logits[None]), [1], [()])
    assert token == 1
    assert probability == pytest.approx(np.exp(4.0) / np.exp(logits).sum())
    assert propose(Distributions(np.array([[1000.0, 2000.0]])), [1], [()]) == [((1, 1.0),)]


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


def test_a_predictors_chances_multiply_to_the_reach() -> None:
    predictor = network(4)
    source = ModelSource(FakeModel(hashed_target(2)), predictor)
    tree = begun(source)
    node, reach = tree.root, 1.0
    for depth in (1, 2, 3):
        source.grow([node])
        (node,) = tree[node].children.values()
        row = np.zeros(8)
        row[tree[node].token] = 3.0
        chance = predictor.chance(row, depth)
        reach *= chance
        assert tree[node].chance == pytest.approx(chance)
        assert tree[node].reach == pytest.approx(reach)


def committed(source: ModelSource, tree: TokenTree, tokens: list[int]) -> None:
    """Commit as `StepDrafter` does: the verdict while the tree stands, what follows it afterwards."""
    source.judge(tokens)
    source.commit(tree.reroot(tokens), None)


@given(st.integers(0, 1000), st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=4), st.booleans()), max_size=9))
def test_a_verdict_is_learned_at_every_fed_place_of_its_path_and_at_no_other(
    seed: int, rounds: list[tuple[list[int], bool]]
) -> None:
    """The twin looks at all fed places of the tree, and asks which are on the path, with what proposed there."""
    source = ModelSource(FakeModel(hashed_target(seed)))
    tree = begun(source, width=2)
    learned: list[tuple[list[int], int]] = []
    source._calibration.learn = lambda named, cells, token: learned.append(  # type: ignore[method-assign]
        ([each for each, _ in named], token)
    )
    for fed, agrees in rounds:
        for place in fed:
            node = list(tree.ids())[place % len(tree)]
            if tree[node].proposals is None:
                source.grow([node])
        path = tree.likeliest_path(tree.root, 2)
        tokens = [*(tree[node].token for node in path), 3] if agrees else [6, 3]
        expected = []
        for node in tree.ids():
            above = [tree[each].token for each in tree.path_to(node)]
            named = tree[node].proposals
            if named is not None and len(above) < len(tokens) and tokens[: len(above)] == above:
                expected.append(([each for each, _ in named], tokens[len(above)]))
        committed(source, tree, tokens)
        assert sorted(learned) == sorted(expected)
        learned.clear()


def test_chances_follow_what_is_committed_for_as_long_as_answers_are_sampled_alike() -> None:
    """A draft that is flat, and always right: at first its token is one of eight, then nearly sure."""
    source = ModelSource(FakeModel(hashed_target(3), sureness=lambda prefix: 0.1))
    tree = begun(source)

    def next_chance() -> float:
        if tree[tree.root].proposals is None:
            source.grow([tree.root])
        (child,) = tree[tree.root].children.values()
        return tree[child].chance

    first = next_chance()
    assert first == pytest.approx(np.exp(0.1) / (7 + np.exp(0.1)))
    for count in range(2 * FIRST_FIT):
        before = next_chance()
        assert count >= FIRST_FIT or before == first
        committed(source, tree, [tree[tree.likeliest_path(tree.root, 1)[0]].token])
    assert next_chance() > 0.7
    tree = begun(source)
    assert next_chance() > 0.7, "it lives as long as its source"
    tree = begun(source, calibrate=False)
    assert next_chance() == first
    tree = begun(source, Coupled(temperature=0.7))
    tree = begun(source)
    assert next_chance() == first, "what was learned of other answers holds no longer"
