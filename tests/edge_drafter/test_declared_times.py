from __future__ import annotations

import pytest

from edge_drafter import PacedModel
from tests.edge_drafter.fakes import FakeClock, FakeModel, hashed_target


def test_a_forward_takes_the_declared_time_whatever_the_real_one() -> None:
    clock = FakeClock()
    model = PacedModel(FakeModel(hashed_target(1), clock, draft_s=0.02), 0.05, clock, clock.sleep)
    model.begin("find it", b"jpeg")
    assert clock.now == 0.0
    model.root_logits()
    assert clock.now == pytest.approx(0.05)
    model.extend([1, 2], [-1, 0])
    assert clock.now == pytest.approx(0.1)
    model.commit([0], 2)
    assert clock.now == pytest.approx(0.1)
