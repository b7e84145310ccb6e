"""SLO-aware batches: WISP's verifier (Sec. 4.3, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloud_verifier.policies.admission import Admission, Candidate, overdue
from cloud_verifier.policies.row_policy import RowPolicy


class Wisp(RowPolicy):
    """Critical rows by deadline, then the others by utility, as long as every deadline in the batch is kept.

    A row is critical from t = LST = d - v - delta on (Eq. 17). Under Algorithm 1 one that is late stays at the head of
    the critical and empties every batch for ever. Here it has no deadline to keep and comes after those that can be in
    time, unless it is `overdue`.
    """

    def due(self, rows: Sequence[Candidate]) -> float:
        """See `RowPolicy.due`."""
        return min((row.due for row in rows), default=math.inf)

    def fill(self, batch: Admission, rows: Sequence[Candidate]) -> None:
        """See `RowPolicy.fill`."""
        first, rest = overdue(rows, batch.now, batch.budget)
        critical: list[Candidate] = []
        other: list[Candidate] = []
        late: list[Candidate] = []
        for row in rest:
            is_critical = batch.now >= row.deadline - row.seconds - batch.budget.guard_s
            (late if row.late else critical if is_critical else other).append(row)
        critical.sort(key=lambda row: row.deadline)
        other.sort(key=lambda row: -row.utility)
        for row in (*first, *critical, *other, *late):
            if not batch.add(row, row.due):
                break
