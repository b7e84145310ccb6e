"""Forwards of a server with declared times."""

from __future__ import annotations

import pytest

from cloud_verifier.declared_times import PacedDraftEngine, PacedEngine
from cloud_verifier.interfaces import Row
from speculation.profiles import DeviceProfile
from tests.cloud_verifier.fake_target import LAYERS, FakeEngine, FakeSelfDraft
from tests.cloud_verifier.prefills import prefill_at_once

PROFILE = DeviceProfile("slow", verify_s=0.4, server_draft_s=0.1)


def test_layers_and_draft_forwards_end_when_they_are_declared_to() -> None:
    waited: list[float] = []
    engine = PacedEngine(FakeEngine(), PROFILE, waited.append, lambda: 1.0)
    prefill_at_once(engine, 0, ("long", b"jpeg"), (), 8)
    assert waited == [], "prompts alone are not paced"
    assert [output.layer for output in engine.verify([Row(0)])] == list(range(LAYERS))
    assert waited == pytest.approx([1.1, 1.2, 1.3, 1.4])
    waited.clear()
    drafts = PacedDraftEngine(FakeSelfDraft(), PROFILE, waited.append, lambda: 1.0)
    drafts.begin(0, ("long", b"jpeg"), 8)
    drafts.encode(0)
    drafts.feed(0, 3)
    assert len(list(drafts.draft([Row(0, self_draft=3)]))) == 3
    assert waited == pytest.approx([1.1, 1.2, 1.3])
