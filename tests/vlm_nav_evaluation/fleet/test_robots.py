"""What robots draft while a draft is away, and what they keep of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.config import Scheduling
from speculation.wire import EarlyTokens
from vlm_nav_evaluation.fleet.robots import TreeDrafter, shares_of
from vlm_nav_evaluation.fleet.systems import Drafting, Exit, System
from vlm_nav_evaluation.fleet.workload import Workload

T_P = 0.01
WORKLOAD = Workload(((0.6, 0.2, 0.1),), (1.0,), answer=(64, 64), seed=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.01, 0.5), min_size=1, max_size=3),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
)
def test_nodes_go_where_they_bring_most(chances: list[float], steps: list[float]) -> None:
    widths = (0, 1, 2, 4, 8)
    steps = sorted(steps, reverse=True)
    worth = [sum(step * (widths[i + 1] - widths[i]) for i, step in enumerate(steps[:place])) for place in range(5)]
    given_nodes = shares_of(chances, widths, worth)
    assert sum(given_nodes) == 8 and min(given_nodes) >= 0

    def gain(nodes: tuple[int, ...]) -> float:
        return sum(chance * worth[max(i for i, w in enumerate(widths) if w <= node)]
                   for chance, node in zip(chances, nodes, strict=True))  # fmt: skip

    best = max(gain(each) for each in itertools.product(widths, repeat=len(chances)) if sum(each) <= 8)
    assert gain(tuple(given_nodes)) >= 0.5 * best - 1e-9


def drafter(heads: int = 0) -> TreeDrafter:
    return TreeDrafter(Drafting(3, ahead=True, tree=8, heads=heads), T_P, WORKLOAD.kinds, WORKLOAD.shares)


def test_what_an_exit_names_rightly_is_drafted_on() -> None:
    request = WORKLOAD.request(0, 1)
    depths = []
    for named_at in (None, 0.1, 0.15):
        robot = drafter(1)
        robot.begin(request, 0.0)
        assert robot.due(0.0) == pytest.approx(0.03)
        tokens, parents = robot.draft(0.03)
        assert parents is not None
        node, place = -1, 0
        for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent == node and token == request.answer[place]:
                node, place = index, place + 1
        if named_at is not None:
            robot.early(EarlyTokens(1, 1, place, node, request.answer[place], 2, 0.99), named_at)
        robot.commit(request.answer[: place + 1], 0.2)
        again, parents = robot.draft(0.23)
        assert parents is not None
        levels = [0] * len(again)
        for index, parent in enumerate(parents):
            levels[index] = 1 + (levels[parent] if parent >= 0 else 0)
        depths.append(max(levels))
    assert depths[1] >= depths[2] >= depths[0] and depths[1] > 3


def test_exits_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="system x: exits"):
        System("x", Scheduling(), exits=(Exit(5, 0.6, 0.8), Exit(2, 0.3, 0.4)))
    with pytest.raises(ValueError, match="exit after layer 2: right = 1.5"):
        Exit(2, 0.5, 1.5)
