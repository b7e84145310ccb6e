from __future__ import annotations

import numpy as np
import pytest

from adapters_training.predictor.drafts import Drafts
from adapters_training.predictor.fit import fit
from adapters_training.predictor.measure import auc
from speculation.predictor import Predictor

HEADER = {"draft": "d", "target": "t", "gamma": 8}


def sample(seed: int, count: int = 1500) -> Drafts:
    """Tokens whose chance to be accepted is a known function of two features; the others are noise."""
    dice = np.random.default_rng(seed)
    rows = np.column_stack([dice.uniform(size=count), *dice.normal(size=(3, count)), dice.integers(1, 9, count)])
    chance = 1 / (1 + np.exp(-(6 * rows[:, 0] - 3 + rows[:, 2])))
    labels = (dice.uniform(size=count) < chance).astype(np.int64)
    return Drafts(rows, labels, np.arange(count), np.arange(count), HEADER)


@pytest.fixture(scope="module")
def fitted() -> Predictor:
    return fit(sample(0), sample(1), 0)


def test_it_learns_what_there_is_to_learn_and_is_calibrated(fitted: Predictor) -> None:
    rows, labels = sample(2).labelled()
    chances = fitted.probabilities(rows)
    assert auc(chances, labels == 1) > 0.85
    likely = chances > 0.5
    for some in (likely, ~likely):  # calibrated: of what gets a chance, as many are accepted
        assert chances[some].mean() == pytest.approx(labels[some].mean(), abs=0.06)
    assert (fitted.draft, fitted.target, fitted.max_depth) == ("d", "t", 8)


def test_begun_again_it_gives_the_same_weights_bit_for_bit(fitted: Predictor) -> None:
    again, other = (fit(sample(0), sample(1), seed) for seed in (0, 1))
    for one, two in zip(fitted.layers, again.layers, strict=True):
        assert (one[0] == two[0]).all() and (one[1] == two[1]).all()
    assert not (fitted.layers[0][0] == other.layers[0][0]).all()
