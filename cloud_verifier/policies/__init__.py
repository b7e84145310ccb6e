"""Scheduling policies. A new one is a new file here and its entry in `POLICIES`; `serve --policy NAME` takes it."""

from __future__ import annotations

from collections.abc import Callable

from cloud_verifier.policies.base import Batch, Budget, Policy
from cloud_verifier.policies.fcfs import Fcfs
from cloud_verifier.policies.full_budget import FullBudget
from cloud_verifier.policies.pipeline import Pipeline
from cloud_verifier.policies.static_batch import StaticBatch
from cloud_verifier.policies.wisp import Wisp

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Fcfs,
    "static_batch": StaticBatch,
    "wisp": Wisp,
    "full_budget": FullBudget,
    "pipeline": Pipeline,
}
"""Name -> policy."""

__all__ = ["POLICIES", "Batch", "Budget", "Policy"]
