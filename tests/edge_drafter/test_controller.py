from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.controller import Controller, balanced_gamma, tokens_per_second
from speculation.acceptance import expected_tokens


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


VERIFY_S, DRAFT_S = 0.0942, 0.011
SPECEDGE_POINTS = [(0.015, 7), (0.040, 5), (0.050, 4)]
"""Round trip, depth; with the two times above (SpecEdge, Sec. 5, on Figure 12)."""


def balanced(rtts: list[float], start: int = 4, **settings: float) -> list[int]:
    """Return the depths that a controller chooses while it measures these round trips, one a verdict."""
    controller = Controller("balance", start=start, **settings)  # type: ignore[arg-type]
    depths = []
    for rtt in rtts:
        controller.drafted(DRAFT_S)
        controller.verified(VERIFY_S)
        controller.judged(controller.gamma, 0, VERIFY_S + rtt, 0.0, VERIFY_S)
        depths.append(controller.gamma)
    return depths


@pytest.mark.parametrize(("rtt", "depth"), SPECEDGE_POINTS)
@pytest.mark.parametrize("start", [1, 4, 12])
def test_balance_has_the_papers_points(rtt: float, depth: int, start: int) -> None:
    assert round(balanced_gamma(VERIFY_S, DRAFT_S, rtt)) == depth
    assert balanced([rtt] * 5, start)[-1] == depth


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.0, 1.0), st.booleans()), min_size=5, max_size=30))
def test_balance_measures_the_link_although_every_batch_takes_its_own_time(
    rounds: list[tuple[float, float, bool]],
) -> None:
    """Passes of a shared verifier differ, and drafts that were sent ahead measure their pass and no round trip."""
    controller = Controller("balance", start=4)
    for verify_s, queue_s, is_ahead in [*rounds, (VERIFY_S, 0.0, False)]:
        controller.verified(verify_s)
        seconds = None if is_ahead else verify_s + 0.04 + queue_s
        controller.judged(4, 2, seconds, queue_s, verify_s)
    assert controller.estimates.rtt_s == pytest.approx(0.04)


def test_balance_does_not_flap_at_the_halfway_point() -> None:
    """Round trips that balance at a depth of 4.5, give or take a twentieth a sample."""
    dice = random.Random(5)
    noisy = [VERIFY_S - DRAFT_S * (4.5 + dice.uniform(-0.05, 0.05)) for _ in range(500)]
    changes = {
        hysteresis: sum(a != b for a, b in itertools.pairwise(balanced(noisy, hysteresis=hysteresis)))
        for hysteresis in (0.03, 0.0)
    }
    assert changes[0.03] <= 1 < 10 < changes[0.0]


@given(st.floats(0.0, 0.4), st.integers(1, 16))
def test_balance_keeps_its_depth_until_that_is_clearly_wrong(rtt: float, start: int) -> None:
    """It moves only beyond the halfway point and the hysteresis, and then to the nearest depth."""
    ideal = balanced_gamma(VERIFY_S, DRAFT_S, rtt)
    after = balanced([rtt] * 5, start, hysteresis=0.1)[-1]
    if abs(ideal - start) < 0.599:
        assert after == start
    else:
        assert abs(after - min(16.0, max(1.0, ideal))) <= 0.601
