"""Figures on virtual time against the papers' formulas, and the backend of the experiment engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation.experiment.run import Arm
from evaluation.formulas import cloud_s, fsd_s, sd_s
from evaluation.virtual_time import PAPERS, Synthetic, VirtualTime, decode, drafting, figures, load_timings, run_mode
from evaluation.virtual_time.figures import at_round_trip, figures_of
from evaluation.virtual_time.layer_split import LayerSplit

GO2_RUN = Synthetic(tokens=200, acceptance=0.727, miss=0.556, mean_exit=8.0, layers=28)


def test_sd_and_fsd_keep_to_the_papers_formula_at_the_go2s_times() -> None:
    """Early Exits, Table 4, at Table 8's times: 1.58x and 1.13x, each within 3 %."""
    timings = replace(PAPERS["go2"], draft_leaf=0.0)
    run = VirtualTime(GO2_RUN.draw(12), timings).run([Arm(mode, mode) for mode in ("cloud", "sd", "fsd")])
    found = {mode: figures_of(answers, timings) for mode, answers in run.answers.items()}
    mean = {mode: entry["total_percentiles_s"]["mean"] for mode, entry in found.items()}
    cloud, sd = cloud_s(timings, 200), sd_s(timings, 200, 4, 2.92)
    fsd = fsd_s(timings, 200, 4, 2.92, 0.5563)
    assert (cloud / sd, sd / fsd) == pytest.approx((1.58, 1.13), abs=0.005)
    assert mean["cloud"] / mean["sd"] == pytest.approx(cloud / sd, rel=0.03)
    assert mean["sd"] / mean["fsd"] == pytest.approx(sd / fsd, rel=0.03)
    assert found["fsd"]["miss_rate"] == pytest.approx(0.556, abs=0.04)
    assert found["fsd"]["mean_exit"] == pytest.approx(8.0, abs=0.4)
    assert found["sd"]["busy_s_per_s"] / found["sd"]["tau"] == pytest.approx(0.54, abs=0.01)


def test_the_backend_gives_what_the_policies_give() -> None:
    recording, timings = Synthetic(tokens=20).draw(3), load_timings("go2")
    arms = [Arm("four", "fsd", {"gamma": 4}), Arm("seven", "fsd", {"gamma": 7, "text": "branches=2"})]
    run = VirtualTime(recording, timings).run(arms)
    for name, config in (
        ("four", drafting("fsd", recording, gamma=4)), ("seven", drafting("fsd", recording, "branches=2", gamma=7))
    ):  # fmt: skip
        assert run.stats(name) == [each.stats for each in decode(recording, timings, config)]
    assert run.different == 0 and run.times_faster("four", "four") == (1.0, 1.0, 1.0)


def test_what_warms_up_is_not_counted_and_changes_what_follows() -> None:
    """Earlier answers outlive a step: the second time an answer is known."""
    recording, timings = Synthetic(tokens=30, acceptance=0.3).draw(2), load_timings("go2")
    backend, arm = VirtualTime(recording, timings), Arm("sd", "sd", {"text": "ngrams=on"})
    cold, warm = (backend.run([arm], recording.steps, before) for before in ((), recording.steps))
    assert len(warm.answers["sd"]) == 2
    assert sum(warm.seconds("sd")) < sum(cold.seconds("sd"))


def test_a_round_trip_replaces_the_timings_own() -> None:
    entry = at_round_trip(0.1, ["cloud", "sd"], Synthetic(tokens=12).draw(2), PAPERS["go2"], LayerSplit())
    cloud = entry["modes"]["cloud"]
    assert cloud["total_s"]["median"] == pytest.approx(0.1 + 12 * 0.62) and cloud["times_cloud"] == 1.0
    assert cloud["useful"] == pytest.approx(12 * 0.62 / (0.1 + 12 * 0.62) / entry["sd_best_tau"])
    assert entry["formulas_s"]["cloud"] == pytest.approx(cloud["total_s"]["median"])


def test_server_sd_is_tuned_at_every_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is searched on few answers first is about as fast as the fastest on all of them."""
    monkeypatch.setattr(figures, "FIRST", 2)
    monkeypatch.setattr(figures, "GAMMAS", (1, 3, 6))
    recording = Synthetic(tokens=12, acceptance=0.6).draw(4)
    timings = replace(load_timings("go2"), server_draft_s=0.05)
    entry = at_round_trip(0.1, ["cloud", "server_sd"], recording, timings, LayerSplit(), gamma=1)
    at = replace(timings, one_way_s=0.05)
    seconds = {
        (depth, size): figures_of(run_mode("server_sd", recording, at, gamma=depth, draft_tokens=size), at)["total_s"]
        for depth in (1, 3, 6)
        for size in (32, 0)
    }
    best, found = entry["server_sd_best"], entry["modes"]["server_sd"]
    assert found["total_s"] == seconds[best["gamma"], best["draft_tokens"]] and found["times_cloud"] > 1.0
    assert found["total_s"]["median"] <= 1.02 * min(each["median"] for each in seconds.values())
    assert best["gamma"] > 1, "--gamma is not its own"
