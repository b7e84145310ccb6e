from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.acceptance_stats import (
    HYSTERESIS,
    Controller,
    ExitQuestion,
    ExitReliability,
    balanced_gamma,
    tokens_per_second,
)

# --- the draft length


def settled(acceptance: float, fixed_s: float, draft_s: float) -> tuple[Controller, list[int]]:
    """Return a controller after 300 rounds of a link and a draft that do not change, and what it chose in the last."""
    controller, chosen = Controller(largest=12), []
    dice = random.Random(7)
    for _ in range(300):
        sent = controller.gamma
        accepted = next((i for i in range(sent) if dice.random() >= acceptance), sent)
        controller.drafted(draft_s)
        controller.judged(sent, accepted, fixed_s)
        chosen.append(controller.gamma)
    return controller, chosen[100:]


@pytest.mark.parametrize(("acceptance", "fixed_s", "draft_s"), [(0.8, 0.7, 0.05), (0.5, 0.2, 0.1), (0.95, 0.6, 0.02)])
def test_auto_settles_near_the_best_length(acceptance: float, fixed_s: float, draft_s: float) -> None:
    rates = [tokens_per_second(acceptance, gamma, fixed_s, draft_s) for gamma in range(13)]
    _, chosen = settled(acceptance, fixed_s, draft_s)
    assert mean(rates[gamma] for gamma in chosen) > 0.93 * max(rates)


def test_a_useless_draft_is_left_alone_but_tried_again() -> None:
    controller, _ = settled(0.0, 0.1, 0.1)
    gammas = []
    for _ in range(32):
        gammas.append(controller.gamma)
        controller.judged(gammas[-1], 0, 0.1)
    assert sorted(gammas) == [0] * 30 + [1] * 2
    for _ in range(2000):
        controller.judged(controller.gamma, controller.gamma, 1.0)
    assert controller.gamma > 4


VERIFY_S, DRAFT_S = 0.0942, 0.011


def balanced(rtts: list[float], start: int = 4) -> list[int]:
    """Return the depths that a controller chooses while it measures these round trips, one a verdict."""
    controller, depths = Controller("balance", start), []
    for rtt in rtts:
        controller.drafted(DRAFT_S)
        controller.verified(VERIFY_S)
        controller.judged(controller.gamma, 0, VERIFY_S + rtt, 0.0, VERIFY_S)
        depths.append(controller.gamma)
    return depths


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.0, 1.0), st.booleans()), min_size=5, max_size=30))
def test_balance_measures_the_link_although_every_batch_takes_its_own_time(
    rounds: list[tuple[float, float, bool]],
) -> None:
    """Passes of a shared verifier differ, and drafts that were sent ahead measure their pass and no round trip."""
    controller = Controller("balance")
    for verify_s, queue_s, is_ahead in [*rounds, (VERIFY_S, 0.0, False)]:
        controller.verified(verify_s)
        seconds = None if is_ahead else verify_s + 0.04 + queue_s
        controller.judged(4, 2, seconds, queue_s, verify_s)
    assert controller.rtt_s == pytest.approx(0.04)


@settings(max_examples=50)
@given(st.floats(0.0, 0.4), st.integers(1, 16))
def test_balance_keeps_its_depth_until_that_is_clearly_wrong(rtt: float, start: int) -> None:
    """It moves only beyond the halfway point and the hysteresis, and then to the nearest depth."""
    ideal = balanced_gamma(VERIFY_S, DRAFT_S, rtt)
    after = balanced([rtt] * 5, start)[-1]
    if abs(ideal - start) < 0.499 + HYSTERESIS:
        assert after == start
    else:
        assert abs(after - min(16.0, max(1.0, ideal))) <= 0.501 + HYSTERESIS


def test_what_drafts_wait_in_the_verifier_is_followed() -> None:
    controller = Controller()
    for queue_s in [0.0] * 5 + [0.2] * 60:
        before = controller.queue_s
        controller.judged(4, 2, None, queue_s)
        assert before <= controller.queue_s <= queue_s
    assert controller.queue_s == pytest.approx(0.2, rel=0.01)


# --- exits


SHARES = st.floats(0.0, 1.0)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from(ExitQuestion), st.integers(0, 2), SHARES, SHARES, st.booleans()), max_size=60)
)
def test_whatever_was_learned_estimates_are_probabilities_that_rise_with_what_was_right(
    verdicts: list[tuple[ExitQuestion, int, float, float, bool]],
) -> None:
    exits = ExitReliability()
    for question, layer, confidence, reach, right in verdicts:
        before = exits.estimate(question, layer, confidence, reach)
        assert 0.0 <= before.probability <= 1.0
        exits.learn(before, right)
        after = exits.estimate(question, layer, confidence, reach).probability
        assert after >= before.probability - 1e-12 if right else after <= before.probability + 1e-12
