"""A verifier that is killed and one that is frozen, in real processes: the robots' answers go on where they stood."""

from __future__ import annotations

from pathlib import Path

from tests.cloud_verifier.process import make_target
from tests.fuzz.processes import FAULTS, inject


def test_robots_are_served_again_after_every_fault(tiny_target: Path, tmp_path: Path) -> None:
    assert len(inject(make_target(tiny_target, tmp_path), 2, seed=1)) == 2
    assert FAULTS[:2] == ("kill", "freeze")
