"""Two alternating cohorts: SpecEdge's verifier (Sec. 4.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_verifier.policies.admission import Admission, Row, RowPolicy
from cloud_verifier.policies.base import Budget
from cloud_verifier.step import Step


class Pipeline(RowPolicy):
    """Verifies one half of the robots while the other half drafts.

    Whoever was in the latest batch drafts now, so that all others are the next cohort. Its batch starts when it is
    complete, at most `--max-batch` rows, or when its first has waited for `--collect-s`. Robots form the cohorts by
    themselves and join and leave at any time; with twice as many as `--max-batch` no one waits but for a pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._latest: frozenset[int] = frozenset()
        """Sessions of the latest batch."""

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """See `RowPolicy.size`: one half of the robots."""
        return min(budget.rows, (sum(not (step.suspended or step.done) for step in steps) + 1) // 2)

    def fill(self, batch: Admission, rows: Sequence[Row]) -> None:
        """See `RowPolicy.fill`. A robot of the latest batch that is back already takes a place that is left."""
        for row in sorted(rows, key=lambda row: row.step.index in self._latest):
            if not batch.add(row):
                break
        self._latest = frozenset(step.index for step in batch.rows)
