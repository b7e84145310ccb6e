"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate
from cloud_verifier.policies.draft_allocation import leave_out_hopeless
from cloud_verifier.policies.row_policy import RowPolicy


class Fcfs(RowPolicy):
    """All steps with something to verify share a forward, the longest waiting first, without hopeless draft tokens."""

    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """See `RowPolicy.order`."""
        return leave_out_hopeless(rows, batch)
