"""Requests are what they were declared to be, and always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlm_nav_evaluation.fleet.workload import Workload

KINDS = ((0.9, 0.05), (0.3, 0.2, 0.1))


def test_a_request_is_always_the_same_one() -> None:
    workload = Workload(seed=3)
    assert workload.request(2, 5) == workload.request(2, 5)
    assert len({workload.request(robot, number) for robot in range(3) for number in range(3)}) == 9
    assert workload.request(2, 5) != replace(workload, seed=4).request(2, 5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kinds", ((1.1,),)), ("kinds", ((0.6, 0.6),)), ("shares", (0.5,)), ("prompt", (0, 4)), ("answer", (5, 4)),
     ("answer", (1, 10_000))],
)  # fmt: skip
def test_what_cannot_be_sampled_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"workload: {field} = "):
        Workload(**{field: value})  # type: ignore[arg-type]
