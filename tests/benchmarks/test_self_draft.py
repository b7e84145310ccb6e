"""The table of drafts made beside the target: its settings, the search for the best depth, and its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import self_draft
from benchmarks.self_draft import best_depth, compared, seconds, survey, synthetic_settings, useless
from edge_drafter import Mode
from vlm_nav_evaluation.virtual_time import Recording, Synthetic

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


def test_a_run_prints_saves_and_plots_every_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path)
    monkeypatch.setattr(self_draft, "synthetic_settings", lambda *_: iter(SETTINGS[6:]))
    assert self_draft.main(["--save"]) == 0
    data = json.loads((tmp_path / "self_draft.json").read_text())
    assert data["figures"] == survey(SETTINGS[6:]) and len(data["figures"]) == 2
    printed = capsys.readouterr().out
    assert all(name in printed for name in data["figures"])
    assert (tmp_path / "self_draft.png").is_file()


def test_a_plot_has_both_ratios_of_every_setting() -> None:
    rows = {
        "one": {"times_server_sd": 0.9, "times_without": 1.5},
        "two": {"times_server_sd": 1.1, "times_without": 3.0},
    }
    (axes,) = self_draft.plot(rows, "some times").axes
    assert [bar.get_width() for bar in axes.patches] == [0.9, 1.1, 1.5, 3.0]  # type: ignore[attr-defined]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["one", "two"]


def test_a_quick_look_takes_two_answers_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Synthetic(tokens=20).draw(4)
    monkeypatch.setattr(Recording, "load", lambda _: recording)
    found = []

    def look(settings: list[self_draft.Setting]) -> dict[str, dict[str, float]]:
        found.extend(settings)
        return survey(settings[:1])

    monkeypatch.setattr(self_draft, "survey", look)
    assert self_draft.main(["--quick", "--recording", "pair.npz", "--out", str(tmp_path / "plots")]) == 0
    assert {len(each.beside.steps) for each in found} == {len(each.edge.steps) for each in found} == {2}
    assert found[0].beside.steps[1].tokens == recording.steps[1].tokens
    assert (tmp_path / "plots" / "self_draft.png").is_file()


def test_options_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert self_draft.main(["--seeds", "0"]) == 2 and "--seeds 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        self_draft.main(["--quick", "--save"])
