"""Whether classes' speeds are kept, and what that takes."""

from __future__ import annotations

import pytest

from cloud_verifier.events import Committed
from cloud_verifier.slo import SloAttainment
from speculation.acceptance import Verdict
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import BeginStep, Commit
from tests.cloud_verifier.steps import step_of


def committed(tokens: int, queue_s: float, compute_s: float, service: str) -> Committed:
    """Return a commit of a robot of this class."""
    commit = Commit(1, 1, 0, [7] * tokens, bytes(8), False, 1, queue_s, compute_s)
    step = step_of(BeginStep(1, "p", b"j"), service=SERVICE_CLASSES[service])
    return Committed(step, Verdict((), 7, 1.0), commit, 0.0, 0.0)


def test_a_commit_is_late_that_took_the_verifier_longer_than_its_class_allows() -> None:
    attainment = SloAttainment()
    assert attainment.late(0.0) == 0.0
    attainment.take(committed(4, 0.3, 0.1, "interactive"))  # 4 tokens at 8 a second: half a second
    assert attainment.late(0.0) == 0.0
    attainment.take(committed(4, 0.3, 0.3, "interactive"))
    assert attainment.late(0.0) == pytest.approx(0.5)
    attainment.take(committed(4, 0.3, 0.3, "economy"))
    assert attainment.late(0.0) == pytest.approx(1 / 3)
