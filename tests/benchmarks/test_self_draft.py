"""The table of drafts made beside the target: its settings, the search for the best depth, and its options."""

from __future__ import annotations

import pytest

from benchmarks import self_draft
from benchmarks.self_draft import best_depth, compared, seconds, survey, synthetic_settings, useless
from edge_drafter import Mode
from evaluation.virtual_time import Synthetic

SETTINGS = list(synthetic_settings(1, seed=3, round_trips_s=(0.04,)))


def test_all_edges_of_a_setting_have_the_answers_of_the_verifiers_draft_model() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS) == 8
    for setting in SETTINGS:
        assert [step.tokens for step in setting.edge.steps] == [step.tokens for step in setting.beside.steps]


def test_a_useless_edge_is_wrong_at_every_place() -> None:
    recording = Synthetic(tokens=30, second=1.0).draw(1)
    (step,) = useless(recording).steps
    assert not (step.draft_tokens == [[token] for token in step.tokens]).any()


def test_the_search_finds_the_depth_that_is_best_and_stops_behind_it() -> None:
    setting = SETTINGS[4]
    best_s, depth = best_depth(setting, range(1, 9))
    every = [seconds(Mode.SERVER_SD, setting.beside, setting.timings, gamma=n, draft_tokens=32) for n in range(1, 9)]
    assert best_s == min(every) and every[depth - 1] == best_s


def test_a_survey_takes_medians_of_what_is_compared() -> None:
    setting = SETTINGS[7]
    twice = survey([setting, setting])
    assert twice == {setting.name: compared(setting)}
    row = twice[setting.name]
    assert row["times_server_sd"] == pytest.approx(row["server_sd"] / row["with"])
    assert row["times_without"] > 2.0  # the edge is useless


def test_options_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert self_draft.main(["--seeds", "0"]) == 2 and "--seeds 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        self_draft.main(["--quick", "--save"])
