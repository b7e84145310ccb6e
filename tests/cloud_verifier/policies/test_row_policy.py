"""Prefills beside rows with deadlines: a chunk takes what is left, and has its turn in the end; one image at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.policies import POLICIES, Batch
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


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
@pytest.mark.parametrize("slack", [0.0209, 0.03, 0.05, 0.12])
def test_a_fixed_chunk_is_no_larger_than_deadlines_leave(policy: str, slack: float) -> None:
    """`--prefill-chunk` is a bound: whoever set it wants shorter forwards, and chose a policy that keeps deadlines.

    To `full_budget` a class is no deadline of a row: here the robot names one itself.
    """
    begun, row = prompt(0.0), waiting(0, slack - 0.125, time_left=0.125)
    batch = POLICIES[policy]().schedule([row, begun], 0.0, COST, replace(BUDGET, chunk=300))
    load = Load.row(1, 100) + begun.chunk_load(batch.chunks.get(begun, 0))
    assert list(batch.choices) == [row] and COST.seconds(load) <= slack
    assert (begun in batch.chunks) == (slack > 0.0217), "where a block of 16 tokens fits"
    assert POLICIES["fcfs"]().schedule([row, begun], 0.0, COST, replace(BUDGET, chunk=300)).chunks == {begun: 300}


@pytest.mark.parametrize("policy", ["wisp", "full_budget"])
def test_an_image_gives_way_to_deadlines_that_it_would_break(policy: str) -> None:
    """Beside a decode that is due in 30 ms and takes 20.1 ms alone."""

    def first(encode_s: float, now: float = 0.0) -> Batch:
        image = Step(BeginStep(1, "p", b"j"), [0], index=9, now=-0.2)
        image.prepared((), 0.0, 100, image_tokens=64)
        image.encode_s = encode_s
        return POLICIES[policy]().schedule([waiting(0, now - 0.095, time_left=0.125), image], now, COST, BUDGET)

    assert first(0.009).encodes and not first(0.009).choices
    assert first(0.011).choices and not first(0.011).encodes
    assert first(0.5).choices, "it would be encoded after this forward, while its robot has time"
    assert first(0.5, now=2.0).encodes, "it waits for more than --patience-s"
