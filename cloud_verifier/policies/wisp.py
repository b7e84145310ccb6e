"""SLO-aware batches: WISP's verifier (Sec. 4.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.policies.admission import Admission, Row, RowPolicy
from speculation.pass_cost import Load


class Wisp(RowPolicy):
    """Critical rows by deadline, then the others by utility, as long as every deadline in the batch is kept.

    Under Algorithm 1 a row that is late stays at the head of the critical and empties every batch for ever. Here it
    has no deadline to keep and comes after those that can be in time.
    """

    def fill(self, batch: Admission, rows: Sequence[Row]) -> None:
        """See `RowPolicy.fill`."""
        for row in [each for part in by_urgency(batch, rows) for each in part]:
            if not batch.add(row, row.due):
                break


def by_urgency(batch: Admission, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows whose turn it is, and those that may be left for a later batch, each in order of admission.

    The former are the critical (t >= LST = d - v - delta, Eq. 17), the earliest deadline first, and before them the
    longest waiting of all where it has waited for more than `Budget.patience_s`: one in a batch, so that nobody waits
    for ever and nobody else for long. Of the latter those that can be in time come first, the most useful first, then
    the late ones, the longest waiting first.
    """
    guard = batch.budget.guard_s
    if guard is None:
        guard = batch.estimates.seconds(Load.total(row.load for row in rows[: batch.budget.rows]))
    turn, later, late = [], [], []
    for row in rows:
        if row is rows[0] and batch.now - row.step.since > batch.budget.patience_s:
            turn.append((float("-inf"), row))
        elif row.late:
            late.append(row)
        elif batch.now >= row.deadline - row.seconds - guard:
            turn.append((row.deadline, row))
        else:
            later.append(row)
    turn.sort(key=lambda each: each[0])
    later.sort(key=lambda row: -row.utility)
    return [row for _, row in turn], later + late
