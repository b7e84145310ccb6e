"""The command line: what is refused, what is recorded first, and one run over real sockets with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import recordings
from benchmarks.decoding import __main__, modes, queues
from edge_drafter import Mode
from vlm_nav_evaluation import plots
from vlm_nav_evaluation.virtual_time import Recording

pytestmark = pytest.mark.usefixtures("forked_verifiers")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("modes --steps 0", "--steps 0"),
        ("modes --virtual-steps -1 --settings go2", "--virtual-steps"),
        ("modes --settings raw --drafting speed=1", "speed"),
        ("modes --settings raw --target-model config", "--target-model config"),
        ("modes --settings go2 --draft-model none", "--draft-model none"),
        ("ablation --steps -2", "--steps -2"),
        ("ablation --recording config/links.json", "config/links.json"),
        ("queues --message-ms 0", "--message-ms 0"),
        ("queues --recorded 1000", "--recorded 1000"),
        ("sweeps --recorded-in none.npz", "none.npz"),
        ("batched --steps 0", "--steps"),
        ("sweeps --steps 0", "--steps"),
        ("cost --prices none.yaml", "none.yaml"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.parametrize("flags", ["modes --settings orin", "modes --rtt-ms -5", "tables", "ablation --steps few"])
def test_unknown_words_are_refused_by_the_parser(flags: str) -> None:
    with pytest.raises(SystemExit) as stop:
        __main__.main(flags.split())
    assert stop.value.code == 2


def test_each_order_of_answers_has_a_recording_of_its_own() -> None:
    options = __main__.parser().parse_args(["cost"])
    first = __main__.parser().parse_args(["cost", "--response-order", "action_first"])
    files = [recordings.recording_file(each).name for each in (options, first)]
    assert files == ["embedded.npz", "embedded_action_first.npz"]


def test_a_missing_recording_is_made_once_and_that_of_others_refused(
    few: None, tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(recordings, "COUNT", 3)
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    file = tmp_path / "new" / "recording.npz"
    pair = ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft)]
    same = ["cost", "--recording", str(file), "--frames", "random", "--max-tokens", "8", "--save"]
    assert __main__.main([*same, *pair, "--steps", "2"]) == 0
    assert len(Recording.load(file).steps) == 3 and "recording 3 frames" in capsys.readouterr().out
    saved = json.loads((tmp_path / "decoding_cost.json").read_text())
    assert {name.split(",")[0] for name in saved["modes"]} == {mode.value for mode in Mode} - {"edge"}
    assert {"full, n-grams off, tuned", "server_sd, tuned"} <= set(saved["modes"])
    assert saved["timings"]["verify_row_s"] > 0.0 and "machine" not in saved
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
    monkeypatch.setattr(queues, "PAIRS", [("priority", "newest")])
    file = tmp_path / "ours.npz"
    recordings.first_answers(recordings.MANY_EXITS, 3).save(file)
    flags = ["queues", "--recorded-in", str(file)]
    assert __main__.main([*flags, "--recorded", "2", "--save"]) == 0
    assert "2 answers: ours.npz" in capsys.readouterr().out
    assert json.loads((tmp_path / "decoding_queues_ours.json").read_text())["answers"] == "ours.npz"
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
    assert given["modes"].seed == 3 and given["modes"].settings == list(modes.SETTINGS)
    assert not hasattr(given["queues"], "seed")


def test_modes_over_real_sockets_and_on_virtual_time(
    few: None, tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    linked = ["cloud", "edge", "sd", "server_sd", "full"]
    monkeypatch.setattr(modes, "LINKED", linked)
    monkeypatch.setattr(recordings, "COUNT", 2)
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr(plots, "KEPT", tmp_path / "kept")
    flags = "modes --settings raw,go2 --rtt-ms 10 --steps 1 --virtual-steps 2 --frames random --max-tokens 5 --save"
    folders = ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft)]
    assert __main__.main([*flags.split(), *folders, "--recording", str(tmp_path / "recording.npz")]) == 0
    printed = capsys.readouterr().out
    assert "this machine's own times" in printed and modes.VIRTUAL in printed
    raw, virtual = (json.loads((tmp_path / f"decoding_modes_{name}.json").read_text()) for name in ("raw", "go2"))
    (real,) = raw["round_trips"]
    assert list(dict.fromkeys(name.split(",")[0] for name in real["modes"])) == linked
    assert real["frames_with_different_tokens"] == 0 and set(real["drafting"]) == set(
        virtual["round_trips"][0]["drafting"]
    )
    assert real["modes"]["full, n-grams off, tuned"]["cpu_s_per_step"] > 0.0
    assert "raw: times faster than cloud by round trip" in printed
    assert real["modes"]["sd"]["times_sd"] == [1.0, 1.0, 1.0] and real["verify_s"] > 0.0
    # Three messages a step at least wait for the declared way.
    assert real["modes"]["cloud"]["first_commit_s"]["min"] > 0.01
    assert "machine" in raw and "machine" not in virtual
    (entry,) = virtual["round_trips"]
    assert set(entry["modes"]) == {*real["modes"], "layer_split"} and entry["modes"]["cloud"]["steps"] == 1
    edge, tokens = entry["modes"]["edge"], entry["modes"]["cloud"]["tokens"]
    assert edge["tokens"] == tokens and edge["total_s"]["max"] == pytest.approx(5 * 0.072)
    assert (tmp_path / "kept" / "decoding_modes.png").read_bytes().startswith(b"\x89PNG")
