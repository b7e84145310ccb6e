"""Requests are what they were declared to be, and always the same."""

from __future__ import annotations

from dataclasses import replace

from vlm_nav_evaluation.fleet.workload import Workload


def test_a_request_is_always_the_same_one() -> None:
    workload = Workload(seed=3)
    assert workload.request(2, 5) == workload.request(2, 5)
    assert len({workload.request(robot, number) for robot in range(3) for number in range(3)}) == 9
    assert workload.request(2, 5) != replace(workload, seed=4).request(2, 5)
