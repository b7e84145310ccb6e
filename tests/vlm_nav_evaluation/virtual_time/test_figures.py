"""Figures on virtual time against the papers' formulas, and the backend of the experiment engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.formulas import cloud_s, fsd_s, sd_s
from vlm_nav_evaluation.virtual_time import PAPERS, Synthetic, VirtualTime, decode, drafting, load_timings
from vlm_nav_evaluation.virtual_time.figures import at_round_trip, figures_of, report
from vlm_nav_evaluation.virtual_time.layer_split import LayerSplit

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
    # A round of sd is four draft forwards, two ways and a pass.
    assert found["sd"]["target_busy"] == pytest.approx(0.62 / (4 * 0.072 + 0.24 + 0.62), rel=0.01)


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
    entry = at_round_trip(0.1, ["cloud", "sd"], Synthetic(tokens=12).draw(2), PAPERS["go2"], LayerSplit(), tuned=False)
    cloud = entry["modes"]["cloud"]
    assert cloud["total_s"]["median"] == pytest.approx(0.1 + 12 * 0.62) and cloud["times_cloud"] == 1.0
    assert cloud["target_busy"] == pytest.approx(12 * 0.62 / (0.1 + 12 * 0.62))
    assert entry["formulas_s"]["cloud"] == pytest.approx(cloud["total_s"]["median"])
    assert entry["drafting"] == {} and cloud["steps"] == 2


def test_busy_over_passes_a_token_is_the_time_of_a_token() -> None:
    """Whatever is drafted, chains or trees: busy is the share of a step in which the target runs."""
    recording, timings = Synthetic(tokens=24, acceptance=0.8).draw(2), load_timings("go2", "0")
    for mode in ("cloud", "sd", "full"):
        run = VirtualTime(recording, timings).run([Arm(mode, mode)])
        found = figures_of(run.answers[mode], timings)
        assert 0.0 < found["target_busy"] <= 1.0
        per_token = sum(run.seconds(mode)) / found["tokens"]
        assert found["passes_per_token"] * timings.verify_s / found["target_busy"] == pytest.approx(per_token)


def test_a_table_has_every_mode_as_shipped_and_tuned_on_other_answers(few: None) -> None:
    recording = Synthetic(tokens=12, acceptance=0.9).draw(6)
    timings = load_timings("go2").with_server_draft()
    modes = ["cloud", "sd", "server_sd", "full", "layer_split"]
    entry = at_round_trip(0.1, modes, recording, timings, LayerSplit(), gamma=1)
    assert list(entry["modes"]) == [
        "cloud", "sd", "sd, tuned", "server_sd", "server_sd, tuned", "full", "full, tuned", "full, n-grams off",
        "full, n-grams off, tuned", "layer_split",
    ]  # fmt: skip
    assert {figures["steps"] for figures in entry["modes"].values()} == {4} and entry["tuned_on"] == 2
    for mode in ("sd", "server_sd"):
        own = entry["modes"][f"{mode}, tuned"]
        assert own["times_cloud"] > entry["modes"][mode]["times_cloud"] and entry["drafting"][f"{mode}, tuned"]
    printed = report(entry)
    assert printed.count("\n") == 11 and printed.splitlines()[1].startswith("| ---")
    assert f"`{entry['drafting']['full, tuned']}`" in printed and "edge CPU s" in printed
