"""Declared times and links: known by name, and the ones that real sockets have."""

from __future__ import annotations

import pytest

from speculation.links import load_link
from speculation.pass_cost import PAPER_COSTS, Load
from vlm_nav_evaluation.virtual_time.link import Channel
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings, load_timings


@pytest.mark.parametrize("wrong", [{"draft_s": -1.0}, {"verify_s": float("nan")}])
def test_times_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Timings(**wrong)  # type: ignore[arg-type]


def test_a_cost_has_the_shape_of_its_profile_and_the_declared_time_of_one_token() -> None:
    cost, timings = PAPER_COSTS["wisp-32b"], load_timings("go2+wisp-32b")
    one, draft = Load.row(1), Load.row(9, 700) + Load.row(1, 300)
    assert timings.name == "go2+wisp-32b" and timings.target_forward_s(one) == pytest.approx(timings.verify_s) == 0.62
    ratio = timings.target_forward_s(draft) / timings.target_forward_s(one)
    assert ratio == pytest.approx(cost.seconds(draft) / cost.seconds(one))
    behind = Timings(verify_s=0.1, prompt_tokens=500).with_cost("wisp-32b")
    assert behind.target_forward_s(Load.row(1, 500)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("go2+gpt", "wisp-32b-main"),
        ("go3+wisp-32b", "'go3' are unknown"),
        ("orin", "jetson_vicuna_7b.*go2_a100_scaled"),
    ],
)
def test_unknown_times_and_costs_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_timings(name)


def test_a_named_link_is_the_one_that_real_sockets_have() -> None:
    """Its random delays, its rate, and the profile's delay on top; a rate of the timings replaces the link's."""
    timeline = Timeline()
    timings = Timings(one_way_s=0.1, link="congested")
    up, _ = Channel.pair(timeline, timings.conditions)
    way, _ = load_link("congested").delayed(0.1).ways(0.0)
    sizes = (12_000, 50, 50, 12_000)
    assert [up.send(bytes(size), lambda: None) for size in sizes] == [way.put(None, size, 0.0) for size in sizes]
    slow = Timings(link="congested", up_bits_per_s=1e4).conditions
    assert (slow.up.rate_bps, slow.down.rate_bps) == (1e4, load_link("congested").down.rate_bps)
    with pytest.raises(ValueError, match="unknown link 'string'"):
        Timings(link="string")
