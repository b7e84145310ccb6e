"""Figures of a fit: by hand where they are simple, by a known truth where they are not."""

from __future__ import annotations

import numpy as np
import pytest

from adapters_training.verifier_profile.configurations import training
from adapters_training.verifier_profile.fit import COEFFICIENTS, folds_r2, intervals, quality
from speculation.pass_cost import Floats, Load, PassCost

TRUTH = PassCost(2.5e-4, 5e-8, 1.2e-6, 4e-3, causal=True)
LOADS = [each.load for each in training()]


def measured(noise: float) -> Floats:
    rng = np.random.default_rng(1)
    return np.array([TRUTH.seconds(load) * rng.uniform(1.0 - noise, 1.0 + noise) for load in LOADS])


def test_figures_by_hand() -> None:
    found = quality(PassCost(1.0, 0.0, 0.0, 0.0), [Load.row(n) for n in (1, 2, 3, 4, 6)], np.array([1.0, 2, 4, 4, 5]))
    assert (found.samples, found.max_error_s) == (5, 1.0)
    assert found.mae_s == pytest.approx(0.4) and found.rmse_s == pytest.approx(0.4**0.5)
    assert found.mape == pytest.approx((1 / 4 + 1 / 5) / 5)
    assert found.r2 == pytest.approx(1.0 - 2.0 / 10.8)
    assert found.adjusted_r2 == pytest.approx(1.0 - (2.0 / 10.8) * 4 / 1)


def test_intervals_hold_the_truth_and_narrow_with_the_noise() -> None:
    narrow, wide = (intervals(LOADS, measured(noise), 60, seed=0) for noise in (0.02, 0.2))
    for name in COEFFICIENTS:
        (low, high), (least, most) = getattr(narrow, name), getattr(wide, name)
        assert 0.9 * getattr(TRUTH, name) < high and low < 1.1 * getattr(TRUTH, name)
        assert high - low < most - least


def test_folds_predict_what_they_were_not_fitted_to() -> None:
    assert folds_r2(LOADS, measured(0.0), seed=3) == pytest.approx([1.0] * 5)
    noisy = folds_r2(LOADS, measured(0.2), seed=3)
    assert len(noisy) == 5 and all(0.8 < each < 1.0 for each in noisy)
