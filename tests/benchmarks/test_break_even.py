"""The break-even map: a grid of two by two, its plot, and its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import break_even
from vlm_nav_evaluation import results
from vlm_nav_evaluation.virtual_time import Synthetic


def test_speculation_pays_near_and_costs_far_and_full_never_loses() -> None:
    recording = Synthetic(tokens=30).draw(1)
    cells = [break_even.at(draft, way, recording, "full", [2, 4]) for way in (0.05, 5.0) for draft in (0.05, 5.0)]
    near, far = cells[0], cells[-1]
    for name in ("full", "sd_best", "fsd_best"):
        assert near[name]["min"] > 1.5
    assert far["sd_best"]["max"] < 0.5 and far["fsd_best"]["max"] < 0.5
    assert all(cell["full"]["min"] > 0.99 for cell in cells)
    assert near["sd_best"]["median"] == max(near["sd_median_by_gamma"].values())


def test_this_code_is_as_fast_as_the_saved_figures() -> None:
    """At the Go2's place of the map, within 2 %: no policy has become slower since."""
    saved = json.loads((results.RESULTS / "break_even.json").read_text())
    go2 = next(each for each in saved["systems"] if each["source"].startswith("Go2"))
    assert saved["settings"]["steps"] == "5" and saved["settings"]["gammas"] == "1,2,4,8"
    cell = break_even.at(go2["draft"], go2["way"], Synthetic(tokens=48).draw(5), "full", [1, 2, 4, 8])
    for entry in ("full", "sd_best", "fsd_best"):
        assert cell[entry]["median"] >= 0.98 * go2[entry]["median"], entry


def test_the_command_plots_and_saves(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(break_even, "GRID", break_even.QUICK_GRID)
    flags = "--save --gammas 4 --synthetic tokens=8,layers=6,mean_exit=2 --steps 1 --mode fsd --verify-ms 9.5"
    assert break_even.main(flags.split()) == 0
    printed = capsys.readouterr().out
    assert "takes 0.22% of it (wisp-32b)" in printed and "places where sd is slower than cloud" in printed
    assert "worst place of 16: fsd 0." in printed and "1 answers of 8 tokens, synthetic, acceptance 0.727" in printed
    assert "T_q 9.5 ms" in printed, "a pass that was measured has its place"
    assert 5_000 < (kept / "break_even.png").stat().st_size < 300_000
    saved = json.loads((kept / "break_even.json").read_text())
    assert len(saved["cells"]) == 16 and len(saved["systems"]) == 21
    assert saved["settings"]["gammas"] == "4" and saved["cells"][0]["fsd"]["median"] > 1.0
