"""What robots draft while a draft is away, and what they keep of it."""

from __future__ import annotations

import pytest

from cloud_verifier.config import Scheduling
from vlm_nav_evaluation.fleet.robots import TreeDrafter
from vlm_nav_evaluation.fleet.systems import Drafting, Exit, System
from vlm_nav_evaluation.fleet.workload import Workload

T_P = 0.01
WORKLOAD = Workload(((0.6, 0.2, 0.1),), (1.0,), answer=(64, 64), seed=3)


def drafter(heads: int = 0) -> TreeDrafter:
    return TreeDrafter(Drafting(3, ahead=True, tree=8, heads=heads), T_P, WORKLOAD.kinds, WORKLOAD.shares)


def test_exits_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="system x: exits"):
        System("x", Scheduling(), exits=(Exit(5, 0.6, 0.8), Exit(2, 0.3, 0.4)))
    with pytest.raises(ValueError, match="exit after layer 2: right = 1.5"):
        Exit(2, 0.5, 1.5)
