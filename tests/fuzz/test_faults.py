"""Every kind of fault a few times: no wrong token, no lost step; and what would be one is noticed."""

from __future__ import annotations

import pytest

from cloud_verifier.interfaces import Row
from speculation.acceptance import Verdict
from tests.fuzz import faults
from tests.fuzz.campaign import Broken
from tests.fuzz.faults import FAULTS, ROBOTS, inject
from tests.fuzz.verifier import FuzzEngine


def test_whatever_fails_no_token_is_wrong_and_no_step_is_lost() -> None:
    world = inject(len(FAULTS), seed=18)
    assert set(world.happened) == {f"{what} {where}" for what, where in FAULTS}
    assert world.total("answers") > 5 * ROBOTS and world.total("interrupted") > 0 and world.total("killed") > 0
    assert world.redirected > 2 * ROBOTS


def test_a_seed_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "QUIET_S", 5.0)
    first, second = inject(1, seed=5), inject(1, seed=5)
    assert str(first) == str(second)
    assert [robot.seconds for robot in first.robots] == [robot.seconds for robot in second.robots]


def test_a_wrong_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = FuzzEngine._judge

    def wrong(self: FuzzEngine, row: Row) -> Verdict:
        verdict = judge(self, row)
        is_late = len(self.rows[row.index].answer) > 12
        return Verdict((), 1 + verdict.token % 5, 0.5) if is_late else verdict

    monkeypatch.setattr(FuzzEngine, "_judge", wrong)
    with pytest.raises(Broken, match="was committed, the answer is"):
        inject(1, seed=1)


def test_a_replica_that_hangs_is_started_again_although_the_directory_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FAULTS", (("hang", "replica"), ("kill", "directory")))
    monkeypatch.setattr(faults, "QUIET_S", 20.0)
    inject(2, seed=1)
