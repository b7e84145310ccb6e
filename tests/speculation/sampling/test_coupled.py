"""Coupled verdicts against greedy ones on perturbed rows, and drafts against perturbed rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Coupled, Greedy, Logits, Point, Prefix, StepDraws, perturbed
from tests.speculation.trees import VOCABULARY, judged_drafts

KEYS = st.integers(0, 2**63 - 1)
SETTINGS = st.builds(Coupled, st.floats(0.01, 4.0), st.integers(0, 4), st.floats(0.1, 1.0))


def drawn(row: Logits, settings: Coupled, draws: StepDraws) -> int:
    return int(np.argmax(perturbed(row, settings, draws)))


@given(judged_drafts(), SETTINGS, KEYS, st.integers(0, 500))
def test_coupled_accepts_what_the_target_draws_at_each_depth(
    draft: tuple[list[int], list[int], Logits], settings: Coupled, key: int, position: int
) -> None:
    """Row by row: a twin perturbs every row with the noise of its own answer position and is greedy after that."""
    tokens, parents, logits = draft
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == -1 else depths[parent] + 1)
    rows = [
        perturbed(row, settings, StepDraws(key, position + depth))
        for row, depth in zip(logits, [0, *depths], strict=True)
    ]
    verdict = settings.judge(tokens, parents, logits, StepDraws(key, position))
    twin = Greedy().judge(tokens, parents, np.stack(rows))
    assert (verdict.path, verdict.token) == (twin.path, twin.token)
    assert verdict.confidence == pytest.approx(twin.confidence, rel=1e-9)
    point = Point(settings.temperature, settings.top_k, settings.top_p)
    assert point.judge(tokens, parents, logits, StepDraws(key, position)) == verdict and point.alone == settings


def test_a_token_is_accepted_as_often_as_the_target_has_it() -> None:
    logits = np.log([[0.2, 0.8], [0.5, 0.5]])
    stood = sum(Point(1.0).judge([0], [-1], logits, StepDraws(key)).path == (0,) for key in range(2000))
    assert abs(stood / 2000 - 0.2) < 0.03


@given(judged_drafts(), SETTINGS, KEYS)
def test_the_draft_does_not_change_the_sample(
    draft: tuple[list[int], list[int], Logits], settings: Coupled, key: int
) -> None:
    """With logits that depend on the depth alone, every draft leads along the same answer."""
    tokens, parents, logits = draft
    verdict = settings.judge(tokens, parents, np.repeat(logits[:1], len(logits), 0), StepDraws(key, 4))
    committed = [*(tokens[node] for node in verdict.path), verdict.token]
    assert committed == [drawn(logits[0], settings, StepDraws(key, 4 + depth)) for depth in range(len(committed))]


def test_coupled_at_temperature_nought_is_greedy() -> None:
    assert Coupled.of(temperature=0.0, top_k=3) == Greedy()
    with pytest.raises(ValueError, match="top_k is -1"):
        Coupled.of(temperature=0.0, top_k=-1)
    with pytest.raises(ValueError, match="coupled draws at random; give a temperature above 0, or greedy"):
        Coupled(0.0)


@given(judged_drafts(), SETTINGS, KEYS, st.sets(st.integers(0, 300), min_size=VOCABULARY, max_size=VOCABULARY))
def test_columns_of_a_list_are_drawn_by_their_tokens(
    draft: tuple[list[int], list[int], Logits], settings: Coupled, key: int, listed: set[int]
) -> None:
    """The same rows as part of a vocabulary whose other tokens cannot come."""
    tokens, parents, logits = draft
    ids = np.array(sorted(listed))
    named = [int(ids[token]) for token in tokens]
    whole = np.full((len(logits), 301), -np.inf)
    whole[:, ids] = logits
    for rule in (Greedy(), Coupled(settings.temperature, settings.top_k)):
        part = rule.judge(named, parents, logits, StepDraws(key, 2), ids)
        entire = rule.judge(named, parents, whole, StepDraws(key, 2))
        assert (part.path, part.token) == (entire.path, entire.token) and part.token in listed
        assert part.confidence == pytest.approx(entire.confidence)


@given(SETTINGS, KEYS, st.lists(st.integers(0, 9), max_size=5))
def test_a_draft_row_is_perturbed_at_its_own_answer_position(settings: Coupled, key: int, answer: list[int]) -> None:
    row, prefix = np.random.default_rng(0).normal(size=10), Prefix(3, bytes(8))
    for token in answer:
        prefix = prefix.after(token)
    ranked = settings.sampler(key).rank(row, prefix)
    assert (ranked == perturbed(row, settings, StepDraws(key, 3 + len(answer)))).all()
    assert settings.pick(row, StepDraws(key, 3 + len(answer)))[0] == int(np.argmax(ranked))
