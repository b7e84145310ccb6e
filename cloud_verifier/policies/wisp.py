"""SLO-aware batches: WISP's verifier (Sec. 4.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate, overdue
from cloud_verifier.policies.row_policy import RowPolicy


class Wisp(RowPolicy):
    """Critical rows by deadline, then the others by utility, as long as every deadline in the batch is kept.

    A row is critical from t = LST = d - v - delta on (Eq. 17), v being its own pass: by its marginal cost alone, which
    leaves out the constant of a pass, none would be critical before it is late. Under Algorithm 1 one that is late
    empties every batch for ever. Here it stays at the head of the critical ones, but its deadline is not to be kept.
    """

    def due(self, row: Candidate) -> float:
        """See `RowPolicy.due`."""
        return row.due

    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """See `RowPolicy.order`."""
        first, rest = overdue(rows, batch.now, batch.budget)
        critical: list[Candidate] = []
        other: list[Candidate] = []
        for row in rest:
            is_critical = batch.now >= row.deadline - row.alone_s - batch.budget.guard_s
            (critical if is_critical else other).append(row)
        critical.sort(key=lambda row: row.deadline)
        other.sort(key=lambda row: -row.utility)
        return [*first, *critical, *other]
