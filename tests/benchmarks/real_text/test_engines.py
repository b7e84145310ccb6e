"""The draft engines on a tiny model that is a folder and a GGUF file: each drafts, is timed and counted alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.real_text import __main__ as real_text
from benchmarks.real_text import engines, packages
from benchmarks.real_text.engines import BFLOAT16, FLOAT32, LLAMA_CPP
from speculation.vlm.load import load_vlm
from tests.models import tiny_text_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model alone."""
    return tiny_text_model(tmp_path_factory.mktemp("text") / "target")


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
        assert found["figures"][name]["agreement"] == 1.0
        assert found["figures"][name]["acceptance"] > 0.8, "a prefill may have committed a draft's first token itself"
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
