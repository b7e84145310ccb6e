"""The run command, layer_split and the papers' formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.analytic.early_exits import cloud_s, fsd_s, sd_s
from benchmarks.analytic.specedge import layer_split_s
from benchmarks.clocked import PAPERS, Synthetic, Timings, __main__, figures
from benchmarks.clocked.layer_split import LayerSplit

PAPER = Synthetic(tokens=200, acceptance=0.727, miss=0.556, mean_exit=8.0, layers=28)


def test_layer_split_takes_one_round_trip_a_token() -> None:
    recording = Synthetic(tokens=20).draw(2)
    timings = PAPERS["go2"]
    split = LayerSplit(share=0.25, slowdown=3.0)
    for result in split.decode(recording, timings):
        assert result.stats.total_s == pytest.approx(layer_split_s(timings, 20, 0.25, 3.0))
        assert result.stats.rounds == result.stats.cloud_passes == 20


def test_layer_splits_hidden_states_take_their_time_on_a_slow_link() -> None:
    recording = Synthetic(tokens=20).draw(1)
    timings = Timings(verify_s=0.1, one_way_s=0.01, up_bits_per_s=1e6, cloud_prefill_s=0.0)
    fast = LayerSplit(hidden_bytes=1000).decode(recording, replace(timings, up_bits_per_s=0.0))[0].stats
    slow = LayerSplit(hidden_bytes=1000).decode(recording, timings)[0].stats
    assert slow.bytes_up == 20_000
    assert slow.total_s - fast.total_s == pytest.approx(20_000 * 8 / 1e6)
    prompt = LayerSplit(hidden_bytes=1000, prompt_tokens=10).decode(recording, timings)[0].stats
    assert prompt.bytes_up == 30_000
    assert prompt.total_s > slow.total_s


def test_sd_and_fsd_keep_to_the_papers_formula_at_the_go2s_times() -> None:
    """Early Exits, Table 4, at Table 8's times: 1.58x and 1.13x, each within 3 %."""
    timings = replace(PAPERS["go2"], draft_leaf=0.0)
    recording = PAPER.draw(12)
    found = {
        mode: figures.figures_of(figures.run_mode(mode, recording, timings), timings) for mode in ("cloud", "sd", "fsd")
    }
    mean = {mode: entry["total_percentiles_s"]["mean"] for mode, entry in found.items()}
    cloud, sd = cloud_s(timings, 200), sd_s(timings, 200, 4, 2.92)
    fsd = fsd_s(timings, 200, 4, 2.92, 0.5563)
    assert (cloud / sd, sd / fsd) == pytest.approx((1.58, 1.13), abs=0.005)
    assert mean["cloud"] / mean["sd"] == pytest.approx(cloud / sd, rel=0.03)
    assert mean["sd"] / mean["fsd"] == pytest.approx(sd / fsd, rel=0.03)
    assert found["fsd"]["miss_rate"] == pytest.approx(0.556, abs=0.04)
    assert found["fsd"]["mean_exit"] == pytest.approx(8.0, abs=0.4)
    assert found["sd"]["busy_s_per_s"] / found["sd"]["tau"] == pytest.approx(0.54, abs=0.01)


def test_run_prints_a_table_and_writes_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("evaluation.experiment.command.PROJECT", tmp_path)
    flags = "run --draw tokens=12,layers=6,mean_exit=2 --steps 2 --modes cloud,sd,layer_split --rtt-ms 0,100"
    assert __main__.main([*flags.split(), "--times", "verify_s=0.5", "--save", "trial"]) == 0
    printed = capsys.readouterr().out
    assert "round trip 100 ms" in printed and "layer_split" in printed
    saved = json.loads((tmp_path / "clocked_trial.json").read_text())
    assert [entry["rtt_s"] for entry in saved["round_trips"]] == pytest.approx([0.0, 0.1])
    cloud = saved["round_trips"][1]["modes"]["cloud"]
    assert cloud["total_s"]["median"] == pytest.approx(0.1 + 12 * 0.5)
    assert cloud["times_cloud"] == 1.0
    assert cloud["useful"] == pytest.approx(12 * 0.5 / 6.1 / saved["round_trips"][1]["sd_best_tau"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--draw miss=2", "miss"),
        ("--draw speed=2", "speed"),
        ("--times draft_s=fast", "draft_s=fast"),
        ("--split share=2", "share"),
        ("--timings orin", "orin"),
        ("--steps 0", "--steps"),
        ("--facts none.npz", "none.npz"),
        ("--edges 0", "--edges"),
        ("--modes server_sd", "server_draft_s=0.011"),
        ("--times link=string", "unknown link 'string'"),
        ("--times layer_shares=1+2", "2 weights"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["run", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
