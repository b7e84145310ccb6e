"""What is asked of tiny models, and saved results in a test's own folder, whichever models they are of."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def pair(tiny_target: Path, tiny_draft: Path) -> list[str]:
    """Return the flags of the tiny pair."""
    return ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft)]


@pytest.fixture
def asked(pair: list[str]) -> list[str]:
    """Return the flags with which the tiny pair answers random frames in few tokens."""
    return [*pair, "--frames", "random", "--guide", "never", "--max-tokens", "6"]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which --save leaves figures and plots."""
    monkeypatch.setattr("vlm_nav_evaluation.results.RESULTS", tmp_path)
    monkeypatch.setattr("vlm_nav_evaluation.results.name_of_pair", lambda pair: "")
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path)
    return tmp_path
