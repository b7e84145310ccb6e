"""The command line: what is refused, what is recorded first, and whose answers are decoded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import recordings
from benchmarks.decoding import __main__, ablation, sweeps
from vlm_nav_evaluation.virtual_time import Recording, Synthetic


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("ablation --steps 1 --target-model config", "--target-model config"),
        ("ablation --draft-model none", "--draft-model none"),
        ("ablation --steps -2", "--steps -2"),
        ("ablation --recording config/links.json", "config/links.json"),
        ("sweeps --recorded 1000", "--recorded 1000"),
        ("sweeps --recorded-in none.npz", "none.npz"),
        ("sweeps --steps 0", "--steps"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.parametrize("flags", ["modes", "tables", "ablation --steps few"])
def test_unknown_words_are_refused_by_the_parser(flags: str) -> None:
    with pytest.raises(SystemExit) as stop:
        __main__.main(flags.split())
    assert stop.value.code == 2


def test_each_order_of_answers_has_a_recording_of_its_own() -> None:
    options = __main__.parser().parse_args(["ablation"])
    first = __main__.parser().parse_args(["ablation", "--response-order", "action_first"])
    files = [recordings.recording_file(each).name for each in (options, first)]
    assert files == ["embedded.npz", "embedded_action_first.npz"]


def test_a_missing_recording_is_made_once_and_that_of_others_refused(
    few: None, tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(recordings, "COUNT", 3)
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    plotted = ("full", "full, n-grams off, tuned")
    monkeypatch.setattr(ablation, "WAYS", {way: {"early tokens": "early_tokens=off"} for way in plotted})
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path)
    monkeypatch.setattr(ablation, "GO2_SYNTHETIC", Synthetic(tokens=20))
    file = tmp_path / "new" / "recording.npz"
    pair = ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft)]
    same = ["ablation", "--recording", str(file), "--frames", "random", "--max-tokens", "8", "--save"]
    assert __main__.main([*same, *pair, "--steps", "2"]) == 0
    assert len(Recording.load(file).steps) == 3 and "recording 3 frames" in capsys.readouterr().out
    saved = json.loads((tmp_path / "decoding_ablation.json").read_text())
    assert set(saved["sources"]["embedded pair"]) == set(plotted)
    assert saved["timings"]["verify_s"] == pytest.approx(0.62) and "machine" not in saved
    assert {path.name for path in tmp_path.glob("*.png")} == {"decoding_ablation.png", "decoding_ablation_tuned.png"}
    refusals = (
        ([*pair, "--steps", "4"], "has 3 steps, 4 are needed"),
        ([*pair, "--steps", "2", "--response-order", "action_first"], "order reason_first"),
        (["--target-model", str(tiny_target), "--draft-model", str(tiny_target)], "another draft model"),
    )
    for flags, reason in refusals:
        assert __main__.main([*same, *flags]) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1


def test_answers_that_others_recorded_take_the_place_of_sampled_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path)
    monkeypatch.setattr(sweeps, "AXES", ((1,), (1,), (1,)))
    file = tmp_path / "ours.npz"
    recordings.first_answers(recordings.MANY_EXITS, 3).save(file)
    flags = ["sweeps", "--recorded-in", str(file)]
    assert __main__.main([*flags, "--recorded", "2", "--save"]) == 0
    assert "2 answers: ours.npz" in capsys.readouterr().out
    assert json.loads((tmp_path / "decoding_sweeps_ours.json").read_text())["answers"] == "ours.npz"
    assert len(recordings.first_answers(file).steps) == 3
    assert __main__.main([*flags, "--recorded", "4"]) == 2
    assert "ours.npz has 3 answers" in capsys.readouterr().err


def test_all_hands_its_options_to_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}
    for name, (module, _, _) in __main__.COMMANDS.items():
        monkeypatch.setattr(module, "run", lambda options, name=name: given.update({name: options}))
    assert __main__.main(["all", "--quick", "--out", "elsewhere", "--seed", "3"]) == 0
    assert list(given) == list(__main__.COMMANDS)
    for name, options in given.items():
        assert options.quick and options.out == Path("elsewhere") and options.command == name
    assert given["ablation"].seed == 3 and not hasattr(given["sweeps"], "seed")
