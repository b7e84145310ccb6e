"""profile-verifier from end to end on a tiny model: real passes; where figures are compared, with declared times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.verifier_profile.command import configurations, quality
from adapters_training.verifier_profile.configurations import Configuration, training
from adapters_training.verifier_profile.measure import ProfileConfig, Profiler
from speculation.cost_profile import COST_FILE, load_cost_profile
from speculation.pass_cost import COEFFICIENTS, Load, PassCost
from speculation.vlm.cache import KVCache
from speculation.vlm.model import Vlm

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


def test_figures_by_hand() -> None:
    found = quality(PassCost(1.0, 0.0, 0.0, 0.0), [Load.row(n) for n in (1, 2, 3, 4, 6)], np.array([1.0, 2, 4, 4, 5]))
    assert (found.samples, found.max_error_s) == (5, 1.0)
    assert found.mae_s == pytest.approx(0.4) and found.rmse_s == pytest.approx(0.4**0.5)
    assert found.mape == pytest.approx((1 / 4 + 1 / 5) / 5)
    assert found.r2 == pytest.approx(1.0 - 2.0 / 10.8)
    assert found.adjusted_r2 == pytest.approx(1.0 - (2.0 / 10.8) * 4 / 1)


def test_a_configuration_is_fed_as_it_says_and_never_twice(target: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[tuple[list[int], list[int], bool]] = []
    plan = KVCache.plan

    def spy(cache: KVCache, rows: list[int], parents: list[list[int]], *rest: object) -> object:
        planned.append(([len(each) for each in parents], [cache.used[row] for row in rows], bool(rest and rest[0])))
        return plan(cache, rows, parents, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(KVCache, "plan", spy)
    profiler = Profiler(target, ProfileConfig(target="tiny", warm_up=2, runs=3))
    mixed, decodes = Configuration(((9, 0), (2, 20))), Configuration(((1, 12), (1, 12)))
    seconds = profiler.passes([mixed, decodes])
    assert seconds.shape == (2,) and (seconds > 0.0).all()
    assert planned.count(([9, 2], [0, 20], True)) == planned.count(([1, 1], [12, 12], False)) == 5
    assert len(planned) == 10 + 3  # and the cached tokens of each row, once


def test_a_short_context_shortens_what_is_measured_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert configurations(training(), 4096, quick=False) == training()
    assert capsys.readouterr().out == ""
    assert max(each.longest for each in configurations(training(), 512, quick=False)) <= 512
    assert "at most (the paper's: 2000)" in capsys.readouterr().out
