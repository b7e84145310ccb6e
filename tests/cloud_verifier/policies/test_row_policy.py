"""Prefills beside rows with deadlines: a chunk takes what is left, and has its turn in the end; one image at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.policies import POLICIES
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.wire import BeginStep, Idle
from tests.cloud_verifier.policies.rows import BUDGET, Declared, waiting
from tests.cloud_verifier.scheduling import Bench

COST = Declared(PassCost(1e-4, 0.0, 0.0, 0.02))
"""A decode alone takes 20.1 ms, and a token more 0.1 ms."""


def prompt(since: float, tokens: int = 1000) -> Step:
    """Return a step that is to be fed so many tokens."""
    step = Step(BeginStep(1, "p", b"j"), [0], index=9, now=since)
    step.prepared((), 0.0, tokens)
    step.encoded = True
    return step


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
def test_a_chunk_takes_what_the_deadlines_leave(policy: str) -> None:
    """Under `full_budget` those of the steps themselves, `BeginStep.time_left`: its classes are about whole answers."""
    begun = prompt(0.0)

    def decode(since: float) -> Step:
        """Return a decode that is due 125 ms after `since`."""
        return waiting(0, since, time_left=0.125)

    def fed(since: float) -> int:
        batch = POLICIES[policy]().schedule([decode(since), begun], 0.0, COST, BUDGET)
        assert len(batch.choices) == 1
        size = batch.chunks.get(begun, 0)
        assert COST.seconds(Load.row(1, 100) + begun.chunk_load(size)) <= 0.125 + since
        return size

    assert fed(0.0) == 201, "twice a forward in which all decode"
    assert fed(-0.09) == 149
    assert fed(-0.1042) == 0, "a chunk of 16 tokens would be too late"
    begun.begun_at = -2.1
    late = POLICIES[policy]().schedule([decode(-0.1042), begun], 0.0, COST, BUDGET)
    assert late.chunks == {begun: 201}, "it waits for more than --patience-s"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_is_fed_whole_where_nobody_waits_and_has_a_place_where_many_do(policy: str) -> None:
    begun = prompt(0.0)
    assert POLICIES[policy]().schedule([begun], 0.0, COST, BUDGET).chunks == {begun: 1000}
    rows = [waiting(index, 0.0) for index in range(3)]
    begun.since = -0.01
    batch = POLICIES[policy]().schedule([*rows, begun], 0.0, COST, replace(BUDGET, rows=2))
    assert len(batch.choices) == 1 and set(batch.chunks) == {begun}


@pytest.mark.parametrize("policy", POLICIES)
def test_images_alternate_with_forwards(policy: str) -> None:
    bench = Bench(policy=policy)
    bench.begin(0, idle=Idle.DECODE, max_tokens=200)
    bench.turn()
    for row in (1, 2, 3):
        bench.begin(row)
    kinds = []
    while any(bench.step(row).pending for row in (1, 2, 3)):
        bench.now += 1.0
        batch = bench.next()
        kinds.append("image" if batch.encodes else "forward")
        bench.run(batch)
    assert kinds == ["forward", *["image", "forward"] * 3]
