"""Figures on virtual time against the paper's formulas, and the backend of the experiment engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import PAPERS, Synthetic, VirtualTime, load_timings
from vlm_nav_evaluation.virtual_time.figures import figures_of

GO2_RUN = Synthetic(tokens=200, acceptance=0.727, miss=0.556, mean_exit=8.0, layers=28)


def test_sd_and_fsd_keep_to_the_papers_formula_at_the_go2s_times() -> None:
    """Early Exits, Table 4, at Table 8's times: 1.58x and 1.13x, each within 3 %."""
    timings = replace(PAPERS["go2"], draft_leaf=0.0)
    run = VirtualTime(GO2_RUN.draw(4), timings).run([Arm(mode, mode) for mode in ("cloud", "sd", "fsd")])
    found = {mode: figures_of(answers, timings) for mode, answers in run.answers.items()}
    mean = {mode: entry["total_percentiles_s"]["mean"] for mode, entry in found.items()}
    rounds, drafting_s, way_s = 200 / 2.92, 4 * timings.draft_s, 2.0 * timings.one_way_s
    cloud, sd = way_s + 200 * timings.verify_s, rounds * (way_s + drafting_s + timings.verify_s)
    fsd = rounds * (way_s + 0.5563 * drafting_s + timings.verify_s)
    assert (cloud / sd, sd / fsd) == pytest.approx((1.58, 1.13), abs=0.005)
    assert mean["cloud"] / mean["sd"] == pytest.approx(cloud / sd, rel=0.03)
    assert mean["sd"] / mean["fsd"] == pytest.approx(sd / fsd, rel=0.03)
    assert found["fsd"]["miss_rate"] == pytest.approx(0.556, abs=0.04)
    assert found["fsd"]["mean_exit"] == pytest.approx(8.0, abs=0.4)
    # A round of sd is four draft forwards, two ways and a pass.
    assert found["sd"]["target_busy"] == pytest.approx(0.62 / (4 * 0.072 + 0.24 + 0.62), rel=0.02)


@pytest.mark.parametrize("mode", ["cloud", "full"])
def test_on_virtual_time_the_last_token_comes_with_the_answer(mode: str) -> None:
    recording = Synthetic(tokens=20).draw(2)
    backend = VirtualTime(recording, load_timings("go2"), with_arrivals=True)
    for result in backend.run([Arm(mode, mode)]).answers[mode]:
        came = result.more["arrivals"]
        assert sum(count for _, count in came) == len(result.tokens)
        assert came[-1][0] == pytest.approx(result.stats.total_s)
        assert came[0][0] == pytest.approx(result.stats.first_commit_s)
