"""Requests are what they were declared to be, and always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_nav_evaluation.fleet.workload import CANDIDATES, Request, Workload

KINDS = ((0.9, 0.05), (0.3, 0.2, 0.1))


def test_a_request_is_always_the_same_one() -> None:
    workload = Workload(seed=3)
    assert workload.request(2, 5) == workload.request(2, 5)
    assert len({workload.request(robot, number) for robot in range(3) for number in range(3)}) == 9
    assert workload.request(2, 5) != replace(workload, seed=4).request(2, 5)


def test_candidates_are_right_as_often_as_declared() -> None:
    workload = Workload(KINDS, (0.25, 0.75), answer=(400, 400))
    requests = [workload.request(0, number) for number in range(40)]
    every = [pair for request in requests for pair in zip(request.kinds, request.ranks, strict=True)]
    for kind, chances in enumerate(KINDS):
        ranks = [rank for at, rank in every if at == kind]
        assert len(ranks) / len(every) == pytest.approx((0.25, 0.75)[kind], abs=0.02)
        for rank, chance in enumerate(chances):
            assert ranks.count(rank) / len(ranks) == pytest.approx(chance, abs=0.02)
    for request in requests:
        assert [token - first for token, first in zip(request.answer, request.firsts, strict=True)] == [*request.ranks]
        assert max(request.ranks) < CANDIDATES


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 50), st.integers(0, 30), st.integers(0, 12))
def test_right_and_predicted_count_token_by_token(number: int, position: int, most: int) -> None:
    request = Workload(answer=(32, 64)).request(0, number)
    assert request.right(position, most) == _right(request, position, most)
    length = 0
    while length < most and position + length < len(request.answer):
        on_path = all(rank == 0 for rank in request.ranks[position : position + length])
        if (request.stops if on_path else request.strays)[position + length]:
            break
        length += 1
    else:
        length = most
    assert request.predicted(position, most) == length


def _right(request: Request, position: int, most: int) -> int:
    count = 0
    for rank in request.ranks[position : position + most]:
        if rank:
            break
        count += 1
    return count


@pytest.mark.parametrize(
    ("field", "value"),
    [("kinds", ((1.1,),)), ("kinds", ((0.6, 0.6),)), ("shares", (0.5,)), ("prompt", (0, 4)), ("answer", (5, 4)),
     ("answer", (1, 10_000))],
)  # fmt: skip
def test_what_cannot_be_sampled_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"workload: {field} = "):
        Workload(**{field: value})  # type: ignore[arg-type]
