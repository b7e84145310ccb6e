"""What is left out of the settings is chosen by what passes cost: how large a batch is, and how long it waits."""

from __future__ import annotations

import pytest

from cloud_verifier.batching import best_batch, best_wait
from speculation.pass_cost import Load, PassCost
from speculation.wire import Draft, Idle
from tests.cloud_verifier.policies.rows import Declared
from tests.cloud_verifier.scheduling import Bench

DEAR, STEEP = PassCost(0.015, 0.0, 0.0, 0.009), PassCost(0.001, 0.0, 0.0, 1.0)
"""Little to share, and nearly all of it."""


def bench_of(cost: PassCost, robots: int, idle: Idle, **settings: object) -> Bench:
    """Return a bench whose robots are all prefilled."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    bench.scheduler.estimates = Declared(cost)
    for row in range(robots):
        bench.begin(row, idle=idle, max_tokens=200)
    while any(bench.step(row).pending for row in range(robots)):
        bench.turn()
    return bench


@pytest.mark.parametrize(("given", "rows"), [(None, 3), (5, 5)])
def test_a_batch_is_as_large_as_predicted_times_make_it_pay(given: int | None, rows: int) -> None:
    bench = bench_of(DEAR, 6, Idle.DECODE, max_batch=given)
    assert best_batch(Declared(DEAR), Load.row(1), 8) == 3
    bench.turn()
    assert [len(bench.turn()) for _ in range(3)] == [rows] * 3


@pytest.mark.parametrize("given", [None, 0.0, 0.125])
def test_a_ready_step_waits_for_as_long_as_company_pays(given: float | None) -> None:
    bench = bench_of(STEEP, 4, Idle.WAIT, collect_s=given, max_batch=4)

    def offer(row: int, round: int) -> None:
        step = bench.step(row)
        bench.scheduler.offer(row, Draft(1, round, step.position, step.digest, []), bench.now)

    for round in range(1, 40):  # four rows a second
        for row in range(4):
            offer(row, round)
        assert len(bench.turn()) == 4
    offer(2, 40)
    wait = best_wait(Declared(STEEP), Load.row(1), 0.25) if given is None else given
    assert wait == given or wait > 0.4
    assert bench.scheduler.next_time(bench.now) == pytest.approx(bench.now + wait)
    assert not wait or not bench.next(bench.now + 0.9 * wait)
    assert len(bench.next(bench.now + 1.01 * wait).choices) == 1
