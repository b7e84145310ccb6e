"""Saved results go into a test's own folder, whichever models they are of."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which --save leaves figures and plots."""
    monkeypatch.setattr("vlm_nav_evaluation.results.RESULTS", tmp_path)
    monkeypatch.setattr("vlm_nav_evaluation.results.name_of_pair", lambda pair: "")
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path)
    return tmp_path
