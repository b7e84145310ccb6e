"""Scheduling policies. A new one is a new file here and its entry in `POLICIES`; `serve --policy NAME` takes it."""

from __future__ import annotations

from collections.abc import Callable

from cloud_verifier.policies.base import Batch, Budget, Policy
from cloud_verifier.policies.fcfs import Fcfs

POLICIES: dict[str, Callable[[], Policy]] = {"fcfs": Fcfs}
"""Name -> policy."""

__all__ = ["POLICIES", "Batch", "Budget", "Policy"]
