from __future__ import annotations

from edge_drafter.branches import Branch, BranchQueue


def test_branches_come_by_confidence_and_a_known_one_keeps_the_larger_want_and_score() -> None:
    queue = BranchQueue(3)
    for anchor, score in ((1, 0.5), (2, 0.2), (3, 0.1), (4, 0.0)):
        queue.put(Branch(anchor, 4, score))
    queue.put(Branch(3, 2, 0.9))
    assert [branch.anchor for branch in queue.best()] == [3, 1, 2]
    assert Branch(3, 4, 0.9) in queue.best()
    queue.keep({2, 4}.__contains__)
    assert {branch.anchor for branch in queue.best()} == {2, 4}
