"""Saved results name what they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation import results

SHIPPED = {name: results.folder_fingerprint(PROJECT / "models" / name) for name in ("target", "draft")}
OTHER = {"target": "0123456789abcdef", "draft": "f" * 16}
WHOLE = {"commit": "abc", "machine": "a box"}


@pytest.mark.parametrize(
    ("pair", "end"), [(SHIPPED, ""), ({}, ""), (results.EARLIER_PAIRS["0_2_0"], "_0_2_0"), (OTHER, "_01234567")]
)
def test_a_result_is_named_after_its_pair(
    pair: dict[str, str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.write_result("speed", {**WHOLE, "pair": pair, "times": [1, 2]})
    (path,) = tmp_path.iterdir()
    assert path.name == f"speed{end}.json" and results.problems(path) == []
    assert "[1, 2]" in path.read_text(), "numbers of a list are on one line"


@pytest.mark.parametrize(
    ("data", "problem"),
    [({"commit": "abc"}, "does not name its machine, pair"), ({**WHOLE, "pair": OTHER}, "has to end with _01234567")],
)
def test_what_a_result_does_not_say_is_a_problem(data: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(data))
    (found,) = results.problems(path)
    assert problem in found


def test_all_saved_results_say_what_they_are_of() -> None:
    assert [problem for path in results.RESULTS.rglob("*.json") for problem in results.problems(path)] == []
