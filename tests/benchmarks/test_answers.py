"""What a grammar costs and saves, as a command, over real sockets with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import answers

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def test_constrained_answers_are_readable_and_settled_text_saves_passes(
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --guide never --max-tokens 24"
    assert answers.main([*models.split(), "--gamma", "2", "--steps", "2", "--modes", "cloud", "sd", "--save"]) == 0
    assert "are not readable: 0" in capsys.readouterr().out
    figures = json.loads((tmp_path / "answers_float32.json").read_text())["figures"]
    assert {figures[f"{mode}, free"]["readable"] for mode in ("cloud", "sd")} == {0.0}, "random weights"
    for mode in ("cloud", "sd"):
        plain, settled = (figures[f"{mode}, {kind}"] for kind in (answers.SETTLED_OFF, "constrained"))
        assert plain["readable"] == settled["readable"] == 1.0 and plain["tokens"] == settled["tokens"]
        assert settled["passes_per_token"] < plain["passes_per_token"]
