"""Static batches: SLED's verifier, the baseline of WISP (Sec. 5.1)."""

from __future__ import annotations

from collections.abc import Collection

from cloud_verifier.policies.base import Budget
from cloud_verifier.policies.fcfs import Fcfs
from cloud_verifier.step import Step


class StaticBatch(Fcfs):
    """Waits until `--max-batch` drafts are there, however few robots there are, for `--collect-s` at most."""

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """See `RowPolicy.size`."""
        return budget.rows
