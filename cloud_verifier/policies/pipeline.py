"""Two alternating cohorts: SpecEdge's verifier (Sec. 4.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_verifier.policies.base import Budget
from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate
from cloud_verifier.policies.draft_allocation import leave_out_hopeless
from cloud_verifier.policies.row_policy import RowPolicy, under_way
from cloud_verifier.step import Step


class Pipeline(RowPolicy):
    """Verifies one half of the robots while the other half drafts.

    Whoever was in the latest batch drafts now, so that the others are the next cohort. Its batch starts when it is
    complete, at most `--max-batch` rows, or when its first has waited for `--collect-s`. So cohorts form by themselves
    while robots come and go; with twice as many robots as `--max-batch` the verifier is never without a cohort.
    """

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """See `RowPolicy.size`: one half of the robots."""
        return min(budget.rows, (under_way(steps) + 1) // 2)

    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """See `RowPolicy.order`. A robot of the latest batch that is back already takes a place that is left."""
        return sorted(leave_out_hopeless(rows, batch), key=lambda row: row.step.index in self.latest)
