"""profile-verifier from end to end on a tiny model: real passes; where figures are compared, with declared times."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters_training.__main__ import main
from adapters_training.verifier_profile.measure import Profiler
from speculation.pass_cost import COEFFICIENTS, COST_FILE, PassCost, load_cost_profile

COST = PassCost(2.5e-4, 5e-8, 1.2e-6, 4e-3, causal=True)


def test_it_writes_what_it_measured(tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--target", str(tiny_target), "--out", str(tmp_path), "--quick", "--runs", "1"]
    assert main(["profile-verifier", *options]) == 0
    found = load_cost_profile(tmp_path / COST_FILE)
    assert (found.dtype, found.device, found.clock, found.train.samples) == ("float32", "cpu", "processor", 13)
    assert not found.fits(found.fingerprint, "float32", "cpu")
    assert found.images and found.encoding is not None and all(each.encode_s > 0.0 for each in found.images)
    printed = capsys.readouterr().out
    assert "scaled to rows of" in printed and "us a cached token" in printed


def test_declared_times_are_found_again(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Profiler, "_median", lambda _, configuration: COST.seconds(configuration.load))
    monkeypatch.setattr(Profiler, "images", lambda *_: [])
    assert main(["profile-verifier", "--target", str(tiny_target), "--out", str(tmp_path)]) == 0
    found = load_cost_profile(tmp_path / COST_FILE)
    assert (found.train.samples, found.test.samples) == (123, 50)
    assert found.cost.causal
    for name in COEFFICIENTS:
        assert getattr(found.cost, name) == pytest.approx(getattr(COST, name), rel=1e-6)
    assert found.test.r2 == pytest.approx(1.0) and found.test.mape < 1e-9 and found.encoding is None
    assert "R2 1.0000" in capsys.readouterr().out
