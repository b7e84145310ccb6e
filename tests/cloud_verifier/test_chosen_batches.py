"""What is left out of the settings is chosen by what passes cost: how large a batch is, and how long it waits."""

from __future__ import annotations

import pytest

from cloud_verifier.batching import best_batch
from speculation.pass_cost import Load, PassCost
from speculation.wire import Idle
from tests.cloud_verifier.policies.rows import Declared
from tests.cloud_verifier.scheduling import Bench

DEAR, STEEP = PassCost(0.015, 0.0, 0.0, 0.009), PassCost(0.001, 0.0, 0.0, 1.0)
"""Little to share, and nearly all of it."""


def bench_of(cost: PassCost, robots: int, idle: Idle, **settings: object) -> Bench:
    """Return a bench whose robots are all prefilled."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    bench.scheduler.costs.passes = Declared(cost)
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
