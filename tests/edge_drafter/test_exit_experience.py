from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.exit_experience import (
    RETRY_STEPS,
    SPREAD,
    START,
    TRIAL,
    ExitExperience,
    Question,
    Regression,
)

SHARES = st.floats(0.0, 1.0)


def most_likely(inputs: np.ndarray, right: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The slow reference: the mode of the weights given all verdicts at once, by Newton's method."""
    weights, precision = start.copy(), np.diag([1.0 / each**2 for each in SPREAD])
    for _ in range(100):
        expected = 1.0 / (1.0 + np.exp(-inputs @ weights))
        slope = precision @ (weights - start) - inputs.T @ (right - expected)
        curve = precision + (inputs.T * (expected * (1.0 - expected))) @ inputs
        weights = weights - np.linalg.solve(curve, slope)
    return weights


def test_one_verdict_after_another_comes_to_what_all_together_give() -> None:
    random = np.random.default_rng(0)
    truth = np.array([1.0, 0.4, 1.2])
    inputs = np.column_stack([np.ones(600), random.normal(0, 1.5, 600), random.normal(0, 2.0, 600)])
    right = random.random(600) < 1.0 / (1.0 + np.exp(-inputs @ truth))
    regression = Regression(list(START[Question.LANDING]))
    for row, yes in zip(inputs.tolist(), right.tolist(), strict=True):
        regression.learn(tuple(row), yes)
    together = most_likely(inputs, right, np.array(START[Question.LANDING]))
    assert regression.weights == pytest.approx(together, abs=0.15)
    assert regression.weights == pytest.approx(truth, abs=0.4)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(Question), st.integers(0, 2), SHARES, SHARES, st.booleans()), max_size=60))
def test_whatever_was_learned_estimates_are_probabilities_that_rise_with_what_was_right(
    verdicts: list[tuple[Question, int, float, float, bool]],
) -> None:
    known = ExitExperience()
    for question, layer, confidence, reach, right in verdicts:
        before = known.estimate(question, layer, confidence, reach)
        assert 0.0 <= before.probability <= 1.0
        known.learn(before, right)
        after = known.estimate(question, layer, confidence, reach).probability
        assert after >= before.probability - 1e-12 if right else after <= before.probability + 1e-12


def test_exits_are_tried_then_kept_while_they_pay_and_tried_again_rarely() -> None:
    known = ExitExperience()
    for _ in range(TRIAL):
        assert known.gain == 0.0 and known.pay(0.1, step=1)
        known.verified(0.0, 0.5)
    assert not known.pay(0.1, step=1) and known.pay(0.0, step=1)
    asked = [step for step in range(1, 4 * RETRY_STEPS) if known.pay(0.1, step)]
    assert asked == [RETRY_STEPS, 2 * RETRY_STEPS, 3 * RETRY_STEPS]
    while not known.pay(0.1, step=1):
        known.verified(0.2, 0.5)
    assert known.gain >= 0.1
