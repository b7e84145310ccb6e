"""The draft engines on a tiny model that is a folder and a GGUF file: each drafts, is timed and counted alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters_training.exit_choice.timing import WARM_UP, Timer
from benchmarks.real_text import __main__ as real_text
from benchmarks.real_text import engines, packages
from benchmarks.real_text.engines import BFLOAT16, FLOAT32, LLAMA_CPP, TREE
from edge_drafter import DecodingStats
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from tests.models import tiny_text_model
from vlm_nav_evaluation.experiment.run import Answer, Question, Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model alone."""
    return tiny_text_model(tmp_path_factory.mktemp("text") / "target")


def test_ratios_are_taken_round_by_round() -> None:
    stats = DecodingStats(tokens=4, rounds=2, drafted=8, accepted=2)
    run = Run({name: [Answer((1, 2, 3, 4), stats)] for name in (LLAMA_CPP, BFLOAT16, FLOAT32)})
    times = {LLAMA_CPP: [(1.0, 3.0), (4.0, 8.0)], BFLOAT16: [(4.0, 4.0), (40.0, 44.0)], FLOAT32: [(8.0, 8.0)] * 2}
    found = engines.figures_of(times, run)
    assert found[LLAMA_CPP]["token_in_bfloat16"] == (0.1, pytest.approx(0.175), 0.25)
    assert found[LLAMA_CPP]["tree_in_tokens"] == (2.0, 2.5, 3.0)
    assert found[BFLOAT16]["token_in_bfloat16"] == (1.0, 1.0, 1.0)
    assert found[FLOAT32]["token_s"] == {"min": 8.0, "median": 8.0, "max": 8.0}
    assert (found[FLOAT32]["tau"], found[FLOAT32]["acceptance"]) == (2.0, 0.25)
    lines = engines.bar_lines(found[LLAMA_CPP])
    assert "0.175, met (at most 0.25)" in lines and "2.500, met (at most 5)" in lines
    slow = {"token_in_bfloat16": (0.2, 0.3, 0.4), "tree_in_tokens": (4.0, 5.5, 6.0)}
    assert engines.bar_lines(slow).count("NOT met") == 2


def test_a_model_agrees_with_its_own_answer_and_with_no_other(folder: Path) -> None:
    session = VlmSession(load_vlm(folder), 256)
    asked = [Question("find the red ball", b""), Question("stop", b"")]
    answers = [[token for token, _ in session.greedy(each.prompt, b"", 7)] for each in asked]
    assert engines.agreement(session, asked, answers) == 1.0
    wrong = [[*answers[0][:-1], answers[0][-1] + 1], answers[1]]
    count = sum(map(len, answers))
    assert engines.agreement(session, asked, wrong) == (count - 1) / count
    assert engines.agreement(session, asked[:1], [answers[0][:1]]) == 1.0


def test_what_is_timed_is_one_token_and_the_tree(folder: Path) -> None:
    vlm, calls = load_vlm(folder), list[tuple[str, int]]()

    class Counted(VlmSession):
        def _feed(self, tokens, parents, stop=None):  # type: ignore[no-untyped-def]
            calls.append((f"{len(self._pending)} waiting", len(tokens)))
            return super()._feed(tokens, parents, stop)

    drafts = {"one": Counted(vlm, 256), "other": Counted(vlm, 256)}
    times = engines.time_rounds(drafts, "find the red ball", vlm.vocabulary, Timer(vlm), 2)
    assert {name: len(rounds) for name, rounds in times.items()} == {"one": 2, "other": 2}
    assert all(seconds > 0 for rounds in times.values() for pair in rounds for seconds in pair)
    rounds = 2 * (WARM_UP + 2)
    assert calls == [("1 waiting", 0), ("0 waiting", len(TREE))] * rounds


@pytest.mark.usefixtures("forked_verifiers")
def test_all_engines_draft_the_targets_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llama_cpp", reason="needs the extra llama-cpp")
    pytest.importorskip("gguf", reason="needs the package gguf, which writes the model")
    from tests.gguf_models import write_gguf

    file = write_gguf(load_vlm(folder), tmp_path / "draft.gguf")
    monkeypatch.setattr("vlm_nav_evaluation.results.RESULTS", tmp_path / "kept")
    command = ["--target-model", str(folder), "--draft-model", str(file), "--capacity", "512", "--save"]
    assert engines.main([*command, "--steps", "2", "--max-tokens", "6", "--rounds", "2"]) == 0
    (kept,) = (tmp_path / "kept").glob("draft_engines_text_float32_*.json")
    found = json.loads(kept.read_text())
    assert found["pair"].keys() == {"target", "draft"} and found["frames_with_different_tokens"] == 0
    assert found["figures"].keys() == {LLAMA_CPP, BFLOAT16, FLOAT32}
    for name in (LLAMA_CPP, FLOAT32):
        assert (found["figures"][name]["agreement"], found["figures"][name]["acceptance"]) == (1.0, 1.0)
    printed = capsys.readouterr().out
    assert "0 answers are not the same" in printed and printed.count(f"\n{LLAMA_CPP}") == 3


def test_what_cannot_be_measured_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engines.main(["--target-model", str(folder), "--draft-model", "no.gguf"]) == 2
    assert "no.gguf does not exist; give the path of a GGUF file" in capsys.readouterr().err
    assert engines.main(["--target-model", str(folder), "--draft-model", str(folder), "--rounds", "0"]) == 2
    assert "--rounds 0: give at least 1" in capsys.readouterr().err
    assert engines.main(["--target-model", str(folder), "--draft-model", str(folder)]) == 2
    assert "is no GGUF file" in capsys.readouterr().err
    monkeypatch.setattr(packages, "weights", lambda: tmp_path / "no.gguf")
    assert real_text.main(["engines", "--out", str(tmp_path)]) == 2
    assert "stage engines failed: python -m benchmarks.real_text.engines" in capsys.readouterr().err
