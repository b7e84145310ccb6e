"""The figures of calibration: losses, reliability, speed, and which recordings they are about."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import calibration
from benchmarks.calibration import OFF, ON, Child, children, compared, figure, fits, losses, ratio, tempered
from vlm_nav_evaluation.virtual_time import Recording, Synthetic


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Synthetic(tokens=20, layers=6, mean_exit=2.0).draw(4)


def test_temperature_1_changes_nothing_but_the_predictor_and_others_keep_the_order(recording: Recording) -> None:
    same, flat = tempered(recording, 1.0), tempered(recording, 4.0)
    for step, one, four in zip(recording.steps, same.steps, flat.steps, strict=True):
        assert one.draft_probabilities == pytest.approx(step.draft_probabilities, abs=1e-6)
        assert (one.acceptance[:, 0] == one.draft_probabilities[:, 0]).all()
        assert (np.diff(four.draft_probabilities, axis=1) <= 1e-12).all()
        assert four.draft_probabilities[:, 0].max() < one.draft_probabilities[:, 0].max()


def test_losses_are_those_of_what_came() -> None:
    found = [Child(0, 0, 0.5, True), Child(0, 0, 0.25, False), Child(9, 1, 0.5, False), Child(9, 1, 0.25, False)]
    figures = losses(found, 10)
    assert figures["first"] == pytest.approx(math.log(2.0)) and figures["loss"] == pytest.approx(1.5 * math.log(2.0))
    assert figures["off"] == pytest.approx((0.25 + 0.25 + 0.5 + 0.5) / 4)


def test_every_place_is_asked_once_and_its_chances_are_shares(recording: Recording) -> None:
    for calibrate in (False, True):
        found = children(recording, calibrate)
        sums: dict[tuple[int, int], float] = {}
        for child in found:
            sums[child.step, child.place] = sums.get((child.step, child.place), 0.0) + child.chance
        assert len(sums) == sum(len(step.tokens) for step in recording.steps)
        assert max(sums.values()) <= 1.0 + 1e-6


def test_a_ratio_of_sums_has_an_error_that_is_0_where_all_answers_agree() -> None:
    assert ratio([2.0, 4.0], [1.0, 2.0]) == pytest.approx((2.0, 0.0))
    found, error = ratio([1.0, 3.0], [1.0, 1.0])
    assert found == 2.0 and error == pytest.approx(2.0 * math.sqrt(2.0) / 2.0)


def test_a_flat_draft_is_calibrated_and_faster_for_it(recording: Recording) -> None:
    entry, proposed = compared(tempered(recording, 4.0), "0")
    assert entry[ON]["loss"] < entry[OFF]["loss"]
    assert entry["full"]["faster"] > 1.0
    assert len(figure({"flat": entry}, {"flat": proposed}).axes) == 3
    assert all(column.value(entry) is not None for column in (*calibration.COLUMNS, *calibration.SPEED))


def test_a_recording_of_other_models_or_of_fewer_answers_does_not_fit(recording: Recording) -> None:
    own = replace(recording, notes={"target": "t", "draft": "d"})
    assert fits(own, own) and not fits(replace(own, notes={"target": "t", "draft": "e"}), own)
    assert not fits(replace(own, steps=own.steps[:2]), own)


def test_rounded_weights_have_so_many_levels_a_row() -> None:
    layer = torch.nn.Linear(64, 3)
    before = layer.weight.detach().clone()
    calibration.round_weights(layer, 3)
    for row, old in zip(layer.weight.detach(), before, strict=True):
        assert len(row.unique()) <= 7
        assert float((row - old).abs().max()) <= float(old.abs().max()) / 6 + 1e-6
