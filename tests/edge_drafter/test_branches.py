from __future__ import annotations

import pytest

from edge_drafter.branches import Branch, BranchQueue
from edge_drafter.settings import BranchOrder


@pytest.mark.parametrize(("policy", "order"), [("fifo", [1, 2, 3]), ("priority", [3, 1, 2])])
def test_branches_come_in_the_order_of_the_policy_and_the_known_one_keeps_its_place(
    policy: str, order: list[int]
) -> None:
    queue = BranchQueue(BranchOrder(policy), 3)
    for anchor, score in ((1, 0.5), (2, 0.2), (3, 0.1), (4, 0.0)):
        queue.put(Branch(anchor, 4, score))
    queue.put(Branch(3, 2, 0.9))
    assert [branch.anchor for branch in queue.best()] == order
    assert Branch(3, 4, 0.9) in queue.best(), "the larger want and score"
    queue.keep({2, 4}.__contains__)
    assert {branch.anchor for branch in queue.best()} == {2, 4}
