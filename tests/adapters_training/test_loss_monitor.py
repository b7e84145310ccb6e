"""A loss that rises is warned of and ends a training; frames of different hardness do neither."""

from __future__ import annotations

import math
import random

import pytest

from adapters_training.loss_monitor import RISE, WARN_STEPS, WINDOW, LossMonitor, TrainingFailed, remedy


def course(start: float | None = 2.0) -> LossMonitor:
    return LossMonitor(remedy(1.0), start)


def enter(losses: list[float], start: float | None = 2.0) -> tuple[LossMonitor, list[str]]:
    entered = course(start)
    warnings = [entered.enter(loss, step) for step, loss in enumerate(losses, start=1)]
    return entered, [warning for warning in warnings if warning]


def test_a_loss_that_falls_unevenly_is_no_warning() -> None:
    rng = random.Random(0)
    _, warnings = enter([2.0 * math.exp(-step / 200) * rng.uniform(0.5, 1.5) for step in range(400)])
    assert warnings == []


def test_a_rise_is_warned_of_once_in_a_while() -> None:
    _, warnings = enter([9.0] * (WINDOW + WARN_STEPS))
    assert len(warnings) == 2
    assert warnings[0].startswith(f"step {WINDOW}: the loss is 9.000, it was 2.000 before the first step; give a lower")


@pytest.mark.parametrize("count", [1, WINDOW - 1])
def test_a_few_steps_are_no_warning(count: int) -> None:
    assert enter([9.0] * count)[1] == []


@pytest.mark.parametrize(
    ("factor", "fails"), [(0.3, False), (0.99, False), (1.01, True), (9.0, True), (math.nan, True)]
)
def test_what_is_worse_than_the_start_fails(factor: float, fails: bool) -> None:
    loss = 2.0 * RISE * factor
    if not fails:
        course().check(loss)
        return
    with pytest.raises(TrainingFailed, match=f"was 2.000 before the first step and is {loss:.3f} after the last: what"):
        course().check(loss)


def test_without_a_start_nothing_is_held_against_it() -> None:
    entered, warnings = enter([9.0] * 50, start=None)
    assert not warnings
    entered.check(9.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_ends_the_training(loss: float) -> None:
    with pytest.raises(
        TrainingFailed, match=r"is (nan|inf|-inf) at step 7: .* --learning-rate than 1, and another --o"
    ):
        course().enter(loss, 7)


def test_a_checkpoint_goes_on_with_it() -> None:
    losses = [1.0] * 7 + [4.0] * 30
    whole, _ = enter(losses)
    first, _ = enter(losses[:25])
    second = course(None)
    second.take(first.state)
    for step, loss in enumerate(losses[25:], start=26):
        second.enter(loss, step)
    assert second.state == whole.state
