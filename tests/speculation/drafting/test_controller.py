from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.drafting.controller import Average, Controller, expected_tokens, tokens_per_second


@given(st.floats(0.0, 0.99), st.integers(0, 20))
def test_expected_tokens_is_the_closed_form(acceptance: float, gamma: int) -> None:
    closed = (1 - acceptance ** (gamma + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, gamma) == pytest.approx(closed)


def settle(acceptance: float, fixed_s: float, draft_s: float, start: int = 4) -> Controller:
    """Return a controller after 300 rounds of a link and a draft that do not change."""
    controller = Controller(start=start, largest=12, weight=0.02)
    dice = random.Random(7)
    for _ in range(300):
        sent = controller.gamma
        accepted = next((i for i in range(sent) if dice.random() >= acceptance), sent)
        controller.drafted(draft_s)
        controller.judged(sent, accepted, fixed_s)
    return controller


@pytest.mark.parametrize(("acceptance", "fixed_s", "draft_s"), [(0.8, 0.7, 0.05), (0.5, 0.2, 0.1), (0.95, 0.6, 0.02)])
def test_it_settles_near_the_best_length(acceptance: float, fixed_s: float, draft_s: float) -> None:
    rates = [tokens_per_second(acceptance, gamma, fixed_s, draft_s) for gamma in range(13)]
    assert rates[settle(acceptance, fixed_s, draft_s).gamma] > 0.93 * max(rates)


def test_a_useless_draft_is_left_alone_but_tried_again() -> None:
    controller = settle(0.0, 0.1, 0.1)
    gammas = []
    for _ in range(32):
        gammas.append(controller.gamma)
        controller.judged(gammas[-1], 0, 0.1)
    assert sorted(gammas) == [0] * 30 + [1] * 2
    for _ in range(2000):
        controller.judged(controller.gamma, controller.gamma, 1.0)
    assert controller.gamma > 4


def test_near_ties_change_nothing() -> None:
    controller = Controller(start=4, hysteresis=10.0)
    for accepted in itertools.islice(itertools.cycle([0, 4]), 50):
        controller.drafted(0.01)
        controller.judged(4, accepted, 1.0)
    assert controller.gamma == 4


def test_average_starts_at_its_first_sample() -> None:
    average = Average(0.5)
    average.add(4.0)
    average.add(8.0)
    assert (average.value, average.samples) == (6.0, 2)
