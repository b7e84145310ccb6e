"""A journal survives being killed and refuses other settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlm_nav_evaluation.journal import Journal


def test_pieces_are_there_again_and_a_cut_line_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", "runs", {"profile": "raw"})
    journal.add({"seed": 1})
    journal.add({"seed": 2})
    path = tmp_path / "new" / "runs.jsonl"
    path.write_text(path.read_text() + '{"seed": 3', encoding="utf-8")
    again = Journal(tmp_path / "new", "runs", {"profile": "raw"})
    assert list(again.pieces()) == [{"seed": 1}, {"seed": 2}]
    again.add({"seed": 4})
    assert list(Journal(tmp_path / "new", "runs", {"profile": "raw"}).pieces())[-1] == {"seed": 4}


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    Journal(tmp_path, "runs", {"profile": "raw", "gamma": 4})
    with pytest.raises(ValueError, match="profile was raw and is go2_a100; give another folder"):
        Journal(tmp_path, "runs", {"profile": "go2_a100", "gamma": 4})
    (tmp_path / "runs.settings.json").write_text("no", encoding="utf-8")
    with pytest.raises(ValueError, match="is no JSON object"):
        Journal(tmp_path, "runs", {"profile": "raw"})
