"""Branches: their order, and threads that finish what they began."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_drafter.branches import Branch, BranchQueue
from edge_drafter.config import QueuePolicy

scores = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12, unique=True)


@given(scores, st.integers(1, 4), st.sampled_from(QueuePolicy), st.data())
def test_a_branch_that_was_begun_stays_until_it_is_full_or_forgotten(
    values: list[float], limit: int, policy: QueuePolicy, data: st.DataObject
) -> None:
    """And as many are under way as there are threads and branches that are not full."""
    queue = BranchQueue(policy, limit, finish=True)
    full: set[int] = set()
    known: set[int] = set()
    before: set[int] = set()
    for anchor, score in enumerate(values):
        queue.put(Branch(anchor, 4, score))
        known.add(anchor)
        if data.draw(st.booleans()):
            full.add(data.draw(st.sampled_from(sorted(known))))
        if data.draw(st.booleans()):
            known.discard(data.draw(st.sampled_from(sorted(known))))
            queue.keep(known.__contains__)
        now = {each.anchor for each in queue.best(lambda each: each.anchor in full)}
        assert (before & known) - full <= now
        assert len(now) == min(limit, len(known - full))
        before = now
        if not known:
            break
