"""The plot of right tokens by depth, out of what a training measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fed_depths import DRAFT, curves, main, named, results
from spec_vlm_nav.graph import PROJECT

SHIPPED = PROJECT / "models" / "fed_head"


def test_the_shipped_head_is_shown_beside_the_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"shipped={SHIPPED}", "--out", str(tmp_path / "new" / "plot.png")]) == 0
    out = capsys.readouterr().out
    assert "shipped" in out and DRAFT in out and (tmp_path / "new" / "plot.png").stat().st_size > 10_000
    found = curves({"one": results(SHIPPED)})
    assert found["one"]["tokens a verification"] > 0.9 * found[DRAFT]["tokens a verification"]


def test_a_folder_without_results_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"none={tmp_path}"]) == 2
    assert "results.json: no results of a fed head's training" in capsys.readouterr().err
    (tmp_path / "results.json").write_text(json.dumps({"head": {}}))
    assert main([f"none={tmp_path}"]) == 2
    assert "they have no shares by depth" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["models/fed_head"])
    assert named("a=b=c") == ("a", Path("b=c"))
