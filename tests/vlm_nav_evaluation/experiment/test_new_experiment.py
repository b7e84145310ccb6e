"""An experiment is one declaration: command line, arms, backend, table and saved figures, all from the engine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from edge_drafter import Mode
from vlm_nav_evaluation import results
from vlm_nav_evaluation.experiment.command import command_line, main_of, ratio_lines
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.options import add_save
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Synthetic, load_timings, run_arms

MODES = [mode.value for mode in Mode if mode.drafts]
COLUMNS = (Column("ms", "total_s.median", ".0f", 1e3), Column("tau", "tau"))


def parser() -> argparse.ArgumentParser:
    line = command_line("benchmarks.toy", "Draft lengths of a mode on virtual time.")
    line.add_argument("--steps", type=int, default=3)
    line.add_argument("--mode", choices=MODES, default="sd")
    add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    arms = [Arm(f"gamma {gamma}", options.mode, {"gamma": gamma}) for gamma in (1, 4)]
    found = run_arms(arms, Synthetic(tokens=24).draw(options.steps), load_timings("rtx_vicuna_7b"))
    print(figures_table("arm", found.figures(), COLUMNS), ratio_lines(found, [("gamma 1", "gamma 4")]), sep="\n")
    if options.save:
        write_result("toy", {"settings": settings_of(options), **provenance(options), "arms": found.figures()})


def test_a_new_experiment_is_one_declaration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert main_of(parser, run, ["--save"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("arm") and "gamma 4 against gamma 1, frame by frame: " in first
    saved = json.loads((tmp_path / "toy.json").read_text())
    assert saved["settings"] == {"steps": "3", "mode": "sd"}
    assert saved["commit"] and saved["machine"] and saved["pair"] == {}, "no model answered"
    assert 1.0 < saved["arms"]["gamma 1"]["tau"] < 2.0 < saved["arms"]["gamma 4"]["tau"]
    assert main_of(parser, run, ["--save"]) == 0
    assert capsys.readouterr().out == first, "virtual time is the same every time"


def test_what_is_wrong_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of(parser, run, ["--steps", "0"]) == 2
    assert capsys.readouterr().err == "toy: --steps 0: give at least 1\n"
