"""Formulas beside virtual time: they agree where they must; table, plots and JSON come out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import formulas
from speculation.acceptance import expected_tokens
from vlm_nav_evaluation import plots
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.virtual_time import PAPERS, Synthetic


def test_virtual_time_is_on_the_formulas_lines_over_the_round_trip() -> None:
    """cloud exactly; sd and fsd within 4 %: 600 random tokens have a tau that is 2 % off at one sigma."""
    source = Synthetic(tokens=200)
    for rtt_s in (0.0, 0.2):
        times = replace(PAPERS["go2"], one_way_s=rtt_s / 2.0)
        found = formulas.virtual(("cloud", "sd", "fsd"), source, 3, times)
        for mode, tolerance in (("cloud", 1e-6), ("sd", 0.04), ("fsd", 0.04)):
            line = formulas.answer_s(mode, times, 0.727, 0.556) / 200
            assert found[mode]["token_s"] == pytest.approx(line, rel=tolerance)


def test_a_draft_that_takes_longer_than_a_verification_is_hardly_ever_ready() -> None:
    """Early Exits, Table 5, Vicuna 13B on the Jetson: four forwards take 1596 ms, a verification 616 ms.

    An answer's last drafts are shorter, and may be hit.
    """
    misses = formulas.speed_ups(2, 60)["jetson_vicuna_13b"]["miss"]
    assert misses["virtual"] > 0.9 > misses["printed"]


def test_pipelined_reaches_picospecs_rate_at_its_times_and_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3, GSM8K, draft length 4: 20.19 tokens/s are printed; Eq. 9 at the printed times has 4 % more."""
    monkeypatch.setattr(formulas, "PICOSPEC", formulas.PICOSPEC[1:2])
    found = formulas.pipelines(2, 200)["Qwen3 0.6B/32B, GSM8K, 4"]
    assert found["virtual"]["pipelined"] == pytest.approx(20.19, rel=0.1)
    assert found["rate"] == pytest.approx(20.98, abs=0.01)
    assert found["virtual"]["sd"] < 0.9 * found["virtual"]["pipelined"]


def test_a_mode_without_a_formula_is_refused() -> None:
    with pytest.raises(ValueError, match="'full'"):
        formulas.answer_s("full", PAPERS["go2"], 0.7, 0.5)


def test_the_command_prints_plots_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(plots, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(formulas, "RTTS_MS", (0, 300))
    monkeypatch.setattr(formulas, "PICOSPEC", formulas.PICOSPEC[1:2])
    assert formulas.main(["--steps", "1", "--save"]) == 0
    printed = capsys.readouterr().out
    assert "Jetson, Vicuna 160M/13B" in printed and "Qwen3 0.6B/32B, GSM8K, 4" in printed
    sizes = {path.stem: path.stat().st_size for path in (tmp_path / "kept").iterdir()}
    assert set(sizes) == {"formulas_early_exits", "formulas_round_trip"}
    assert all(5_000 < size < 120_000 for size in sizes.values())
    saved = json.loads((tmp_path / "formulas.json").read_text())
    assert len(saved["systems"]) == 7
    sd = saved["round_trips"]["formula_token_s"]["sd"]
    assert sd[1] - sd[0] == pytest.approx(0.3 / expected_tokens(0.727, 4))


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert formulas.main(["--steps", "0"]) == 2
    error = capsys.readouterr().err
    assert "--steps 0" in error and error.count("\n") == 1
