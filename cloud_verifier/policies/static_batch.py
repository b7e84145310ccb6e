"""Static batches: SLED's verifier, the baseline of WISP (Sec. 5.1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_verifier.policies.base import Budget
from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate
from cloud_verifier.policies.row_policy import RowPolicy
from cloud_verifier.step import Step


class StaticBatch(RowPolicy):
    """Waits until `--max-batch` drafts are there, however few robots there are, for `--collect-s` at most."""

    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """See `RowPolicy.order`: the longest waiting first."""
        return rows

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """See `RowPolicy.size`."""
        return budget.rows
