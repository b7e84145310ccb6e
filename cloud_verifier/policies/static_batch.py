"""Static batches: SLED's verifier, the baseline of WISP (Sec. 5.1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_verifier.policies.admission import Admission, Row, RowPolicy
from cloud_verifier.policies.base import Budget
from cloud_verifier.step import Step


class StaticBatch(RowPolicy):
    """Waits until `--max-batch` drafts are there, at most `--collect-s`, and verifies them whole, first come, first
    served."""

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """See `RowPolicy.size`: the same however many robots there are."""
        return budget.rows

    def fill(self, batch: Admission, rows: Sequence[Row]) -> None:
        """See `RowPolicy.fill`."""
        for row in rows:
            if not batch.add(row):
                break
