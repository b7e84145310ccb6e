"""Whether classes' speeds are kept, and what that takes."""

from __future__ import annotations

import pytest

from cloud_verifier.slo import SloAttainment
from speculation.service import SERVICE_CLASSES
from speculation.wire import Commit

FAST, SLOW = SERVICE_CLASSES["interactive"], SERVICE_CLASSES["economy"]


def commit(tokens: int, queue_s: float, compute_s: float, prefill_s: float = 0.0) -> Commit:
    return Commit(1, 1, 0, [7] * tokens, bytes(8), False, 1, queue_s, compute_s, prefill_s)


def test_a_commit_is_late_that_took_the_verifier_longer_than_its_class_allows() -> None:
    attainment = SloAttainment()
    assert attainment.late(0.0) == 0.0
    attainment.committed(commit(4, 0.3, 0.1), FAST, 0.0)  # 4 tokens at 8 a second: half a second
    assert attainment.late(0.0) == 0.0
    attainment.committed(commit(4, 0.3, 0.3), FAST, 0.0)
    assert attainment.late(0.0) == pytest.approx(0.5)
    attainment.committed(commit(4, 0.3, 0.3), SLOW, 0.0)
    assert attainment.late(0.0) == pytest.approx(1 / 3)
