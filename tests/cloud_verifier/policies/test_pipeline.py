"""Two cohorts: they alternate, form by themselves and wait for each other only so long."""

from __future__ import annotations

from itertools import pairwise

from cloud_verifier.config import Scheduling
from cloud_verifier.policies import Batch
from speculation.pass_cost import PassCost
from tests.cloud_verifier.policies.fleet import Fleet, Robot

SPEC_EDGE = PassCost(0.0, 0.0, 0.0, 0.06)
"""A verification of 60 ms, whatever is in it (SpecEdge, Sec. 5)."""


def run(policy: str, robots: int, seconds: float, **settings: float) -> tuple[Fleet, list[frozenset[int]]]:
    """Return a run of SpecEdge's edges (11 ms a token, 14 ms round trip) and the sessions of its batches."""
    batches: list[frozenset[int]] = []

    def note(batch: Batch) -> None:
        batches.append(frozenset(step.index for step in batch.choices))

    edges = [Robot(draft_s=0.011, round_trip_s=0.014, starts_at=0.003 * n) for n in range(robots)]
    plan = Scheduling(policy=policy, **settings)  # type: ignore[arg-type]
    return Fleet(edges, SPEC_EDGE, plan, on_batch=note).run(seconds), batches


def test_with_twice_as_many_robots_as_rows_two_cohorts_keep_the_verifier_busy() -> None:
    fleet, batches = run("pipeline", 8, 10.0, max_batch=4, collect_s=0.2)
    late = batches[20:]
    assert all(len(batch) == 4 for batch in late)
    assert sum(one.isdisjoint(other) for one, other in pairwise(late)) > 0.9 * len(late)
    assert fleet.busy_s > 0.97 * 10.0
    alone, _ = run("static_batch", 4, 10.0, max_batch=4, collect_s=0.2)
    tokens = [sum(each.tokens for each in one.rounds) for one in (fleet, alone)]
    assert tokens[0] > 1.7 * tokens[1], "the verifier of one cohort waits while it drafts"
