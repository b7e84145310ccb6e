"""The command: record and check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import virtual_time
from speculation.profiles import DeviceProfile
from vlm_nav_evaluation.experiment.run import Answer, Arm, Run
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, VirtualTime

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def test_the_check_sets_medians_side_by_side() -> None:
    recording = Synthetic(tokens=12, layers=6, mean_exit=2.0).draw(3)
    profile = DeviceProfile("trial", 0.01, 0.1, 0.02)
    timings = Timings.of(profile, edge_prefill_s=0.03, cloud_prefill_s=0.05)
    arms = [Arm(mode, mode) for mode in ("cloud", "sd")]
    real = VirtualTime(recording, timings).run(arms, None, recording.steps[:2])
    declared = virtual_time.declared_timings(profile, real)
    assert (declared.edge_prefill_s, declared.cloud_prefill_s) == pytest.approx((0.03, 0.05))
    assert replace(declared, edge_prefill_s=0.03, cloud_prefill_s=0.05) == timings
    rows = virtual_time.agree(real, recording, timings, gamma=4)
    assert [row["error"] for row in rows.values()] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert [row["error_as_waited"] for row in rows.values()] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert [row["different"] for row in rows.values()] == [0, 0]
    slower = virtual_time.agree(real, recording, replace(timings, verify_s=0.2), gamma=4)
    assert min(row["error"] for row in slower.values()) > 0.5
    late = virtual_time.agree(real, recording, replace(timings, verify_s=0.05), gamma=4)
    assert max(row["error"] for row in late.values()) < -0.2
    assert [row["error_as_waited"] for row in late.values()] == pytest.approx([0.0, 0.0], abs=1e-9)
    wrong = Run({"cloud": [Answer((1, 2), each.stats) for each in real.answers["cloud"]]})
    assert virtual_time.agree(wrong, recording, timings)["cloud"]["different"] == 3
    assert all(column.value(row) is not None for row in rows.values() for column in virtual_time.COLUMNS)


def test_record_and_check_from_the_command_line(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --max-tokens 6 --guide never"
    out = tmp_path / "recording.npz"
    assert virtual_time.main(f"record {models} --count 2 --out {out}".split()) == 0
    assert len(Recording.load(out).steps) == 2
    flags = "--steps 1 --modes cloud,sd --within 1000"
    assert virtual_time.main(f"check {models} {flags}".split()) == 0
    assert "off by" in capsys.readouterr().out
