"""The comparison with peers: our answers are transformers' greedy ones, refusals are told, figures are of what ran."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.generation import Answer
from benchmarks.peers import ALONE, ASSISTED, FIXED_WORDS, GREEDY, LOOKUP, OURS, SIGHTED, Run, TargetAlone
from evaluation.experiment.questions import questions
from evaluation.experiment.run import Question
from speculation.vlm.load import Vlm
from tests.models import tiny_text_model

ASKED = [Question(f"question {number}", b"") for number in range(3)]


class Fixed(TargetAlone):
    """A target that always says 1, 2."""

    def __init__(self) -> None:
        self.rows = [np.array([0.0, 3.0, 1.0]), np.array([0.0, 1.0, 4.0])]

    def __call__(self, question: Question) -> Answer:
        return Answer((1, 2), 0.5, 3, 2)


def test_arms_are_compared_with_the_target_and_a_refusal_is_told() -> None:
    def fails(question: Question) -> Answer:
        if question.prompt.endswith("1"):
            raise ValueError("no\n  such thing")
        return Answer((1, 2), 0.1, 1, 1)

    given = {GREEDY: lambda _: Answer((1, 2), 1.0, 2, 2), LOOKUP: fails}
    ours = {"sd": lambda question: Answer((1, 1) if question is ASKED[2] else (1, 2), 0.25, 2, 1)}
    run = peers.measure(given, Fixed(), ours, ASKED, ASKED[:1])
    assert run.refused == {LOOKUP: "no such thing"} and list(run.answers) == [GREEDY, ALONE, "sd"]
    assert all(len(answers) == len(ASKED) for answers in run.answers.values())
    (flip,) = run.flips
    assert (flip.frame, flip.mode, flip.position, flip.margin) == (2, "sd", 1, 3.0)
    found = peers.figures_of(run)
    assert found["sd"]["ratio_low_median_high"] == (4.0, 4.0, 4.0)
    assert (found["sd"]["tau"], found["sd"]["forwards_per_token"], found["sd"]["tokens_per_s"]) == (2.0, 1.0, 8.0)
    assert (found[ALONE]["tau"], found[ALONE]["forwards_per_token"]) == (1.0, 1.5)
    assert found["sd"]["frames_other_than_target"] == 1 and found["sd"]["largest_margin"] == 3.0
    assert "4.00x (4.00-4.00)" in peers.report(found)


def test_what_our_side_raises_is_no_refusal() -> None:
    def broken(question: Question) -> Answer:
        raise ValueError("the verifier cannot use it")

    with pytest.raises(ValueError, match="the verifier cannot use it"):
        peers.measure({}, Fixed(), {"sd": broken}, ASKED)
    assert peers.figures_of(peers.measure({}, Fixed(), {}, ASKED))[ALONE]["ratio_low_median_high"] is None


def test_our_own_loop_is_transformers_greedy(target: Vlm, draft: Vlm) -> None:
    asked = questions("random", 2)
    run = peers.measure(peers.peers_of(target, draft, 16, 4), TargetAlone(target, 16), {}, asked)
    assert not run.flips and set(run.answers) | set(run.refused) >= {GREEDY, ASSISTED, SIGHTED, ALONE, LOOKUP}
    assert [each.tokens for each in run.answers[GREEDY]] == [each.tokens for each in run.answers[ALONE]]


@pytest.mark.parametrize("source", ["random", "text"])
def test_the_whole_comparison_over_real_sockets(
    source: str,
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = (tiny_target, tiny_draft)
    if source == "text":
        pair = (tiny_text_model(tmp_path / "big", layers=3), tiny_text_model(tmp_path / "small", layers=2))
    monkeypatch.setattr("evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("evaluation.experiment.command.PROJECT", tmp_path)
    monkeypatch.setattr("evaluation.plots.KEPT", tmp_path)
    arguments = ["--target-model", str(pair[0]), "--draft-model", str(pair[1]), "--frames", source, "--steps", "3"]
    assert peers.main([*arguments, "--max-tokens", "12", "--dtype", "float64", "--save"]) == 0
    name = "peers_text" if source == "text" else "peers"
    saved = json.loads((tmp_path / f"{name}_float64.json").read_text())
    assert saved["flips"] == [] and {GREEDY, ALONE, *OURS} <= saved["figures"].keys()
    assert (SIGHTED in saved["figures"]) == (source == "random") and (FIXED_WORDS in saved["figures"]) == (
        source == "text"
    )
    assert all(len(times) == 3 for times in saved["step_s"].values())
    assert all(entry["frames_other_than_target"] == 0 for entry in saved["figures"].values())
    assert (tmp_path / f"{name}.png").stat().st_size < 120_000
    assert "1 thread(s) in each process" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "--steps 0, --threads 1: give at least 1"),
        (["--frames", "text:nowhere.jsonl"], "asks in words, and target"),
        (["--draft-model", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    tiny_target: Path,
    tiny_draft: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft)]
    assert peers.main([*pair, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("peers: ") and sentence in error and error.strip().count("\n") == 0


def test_the_picture_has_a_bar_for_every_arm() -> None:
    run = Run({GREEDY: [Answer((1,), 0.2, 1, 1)], ALONE: [Answer((1,), 0.1, 2, 1)]}, [], {})
    (axes,) = peers.draw(peers.figures_of(run), "title").axes
    assert [bar.get_width() for bar in axes.patches] == [pytest.approx(200.0), pytest.approx(100.0)]
    assert [text.get_text() for text in axes.texts] == ["200 ms", "100 ms, 2.00x"]
