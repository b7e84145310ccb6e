"""Prefills beside rows with deadlines: a chunk takes what is left, and has its turn in the end; one image at a time."""

from __future__ import annotations

import pytest

from cloud_verifier.estimator import Costs
from cloud_verifier.policies import POLICIES, Batch
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.wire import BeginStep
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.steps import step_of

COST = Declared(PassCost(1e-4, 0.0, 0.0, 0.02))
"""A decode alone takes 20.1 ms, and a token more 0.1 ms."""


def prompt(since: float, tokens: int = 1000) -> Step:
    """Return a step that is to be fed so many tokens."""
    step = step_of(BeginStep(1, "p", b"j"), index=9, now=since)
    step.prefill.prepared((), tokens, image_tokens=0)
    return step


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
def test_a_chunk_takes_what_the_deadlines_leave(policy: str) -> None:
    """Under `full_budget` those of the steps themselves, `BeginStep.time_left`: its classes are about whole answers."""
    begun = prompt(0.0)

    def decode(since: float) -> Step:
        """Return a decode that is due 125 ms after `since`."""
        return waiting(0, since, time_left=0.125)

    def fed(since: float) -> int:
        batch = POLICIES[policy]().schedule([decode(since), begun], 0.0, Costs(COST), BUDGET)
        assert len(batch.choices) == 1
        size = batch.chunks.get(begun, 0)
        assert COST.seconds(Load.row(1, 100) + begun.prefill.load(size)) <= 0.125 + since
        return size

    assert fed(0.0) == 201, "twice a forward in which all decode"
    assert fed(-0.09) == 149
    assert fed(-0.1042) == 0, "a chunk of 16 tokens would be too late"
    begun.begun_at = -2.1
    late = POLICIES[policy]().schedule([decode(-0.1042), begun], 0.0, Costs(COST), BUDGET)
    assert late.chunks == {begun: 201}, "it waits for more than --patience-s"


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
def test_an_image_gives_way_to_deadlines_that_it_would_break(policy: str) -> None:
    """Beside a decode that is due in 30 ms and takes 20.1 ms alone."""

    def first(encode_s: float, now: float = 0.0) -> Batch:
        image = step_of(BeginStep(1, "p", b"j"), index=9, now=-0.2)
        image.prefill.prepared((), 100, image_tokens=64)
        image.prefill.encode_s = encode_s
        return POLICIES[policy]().schedule([waiting(0, now - 0.095, time_left=0.125), image], now, Costs(COST), BUDGET)

    assert first(0.009).encodes and not first(0.009).choices
    assert first(0.011).choices and not first(0.011).encodes
    assert first(0.5).choices, "it would be encoded after this forward, while its robot has time"
    assert first(0.5, now=2.0).encodes, "it waits for more than --patience-s"
