"""The command: formula and engine agree where they must, tables and pictures come out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.analytic import __main__, engine, pictures
from benchmarks.analytic.early_exits import MEASURED, SYSTEMS
from benchmarks.clocked import PAPERS, Synthetic, Timings
from evaluation import plots
from speculation.acceptance import expected_tokens


def test_the_engine_is_on_the_formulas_lines_over_the_round_trip() -> None:
    """cloud exactly; sd and fsd within 4 %: 600 drawn tokens have a tau that is 2 % off at one sigma."""
    source = Synthetic(tokens=200)
    found = engine.round_trips(source, 3, [0.0, 0.2], PAPERS["go2"])
    for index, rtt_s in enumerate((0.0, 0.2)):
        assert found["cloud"][index].token_s == pytest.approx(pictures.token_s("cloud", rtt_s, 0.727, 0.556))
        for mode in ("sd", "fsd"):
            line = pictures.token_s(mode, rtt_s, 0.727, 0.556)
            assert found[mode][index].token_s == pytest.approx(line, rel=0.04)


def test_a_draft_that_takes_longer_than_a_verification_is_hardly_ever_ready() -> None:
    """Early Exits, Table 5, Vicuna 13B on the Jetson: four forwards take 1596 ms, a verification 616 ms.

    An answer's last drafts are shorter, and may be hit.
    """
    name = "jetson_vicuna_13b"
    source = engine.source_of(SYSTEMS[name], MEASURED[name], 60)
    found = engine.ran("fsd", source, 2, PAPERS[name])
    assert found.miss > 0.9 > MEASURED[name].miss


def test_the_engines_link_takes_what_the_formula_says() -> None:
    lines, dots, sizes = __main__.bandwidth(0.727)
    assert lines.keys() == dots.keys()
    for name, line in lines.items():
        assert dots[name] == pytest.approx(line, rel=2e-3), name
    up, down = sizes[__main__.TOKENS_ONLY]
    assert 0 < up <= 50 and 0 < down <= 100
    assert engine.round_s(125, 0, Timings(one_way_s=0.01, up_bits_per_s=1e3)) == pytest.approx(1.02)


def test_a_mode_without_a_formula_is_refused() -> None:
    with pytest.raises(ValueError, match="'full'"):
        pictures.token_s("full", 0.1, 0.7, 0.5)


def test_the_command_prints_draws_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("evaluation.experiment.command.PROJECT", tmp_path)
    monkeypatch.setattr(plots, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(__main__, "ANSWER", 60)
    monkeypatch.setattr(__main__, "RTTS_MS", (0, 300))
    assert __main__.main(["--steps", "1", "--save"]) == 0
    printed = capsys.readouterr().out
    for title in ("Early Exits, Table 4", "PicoSpec, Eq. 5", "DSSD, Table 2", "SpecEdge, Eq. 1"):
        assert title in printed
    drawn = {path.stem: path.stat().st_size for path in (tmp_path / "kept").iterdir()}
    assert set(drawn) == {
        "analytic_fsd_gain", "analytic_early_exits", "analytic_round_trip", "analytic_bandwidth"
    }  # fmt: skip
    assert all(5_000 < size < 120_000 for size in drawn.values())
    saved = json.loads((tmp_path / "analytic.json").read_text())
    assert len(saved["tables"]) == 8
    assert all(len(row) == len(each["columns"]) for each in saved["tables"] for row in each["rows"])
    tau = expected_tokens(0.727, 4)
    sd = saved["round_trips"]["formula_token_s"]["sd"]
    assert sd[1] - sd[0] == pytest.approx(0.3 / tau)


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--steps", "0"]) == 2
    error = capsys.readouterr().err
    assert "--steps 0" in error and error.count("\n") == 1
