"""Saved results name what they are of."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation import results

SHIPPED = {name: results.folder_fingerprint(PROJECT / "models" / name) for name in ("target", "draft")}
OTHER = {"target": "0123456789abcdef", "draft": "f" * 16}
WHOLE = {"commit": "abc", "machine": "a box"}


@pytest.mark.parametrize(("pair", "end"), [(SHIPPED, ""), ({}, ""), (OTHER, "_01234567")])
def test_a_result_is_named_after_its_pair(
    pair: dict[str, str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.write_result("speed", {**WHOLE, "pair": pair, "times": [1, 2]})
    (path,) = tmp_path.iterdir()
    assert path.name == f"speed{end}.json" and results.problems(path) == []
    assert "[1, 2]" in path.read_text(), "numbers of a list are on one line"


def test_a_commit_has_a_plus_where_code_differs_and_none_for_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROJECT", tmp_path)
    assert results.commit() == "-", "no repository"
    for name in ("benchmarks/results/speed.json", "README.md", "code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    clean = results.commit()
    assert len(clean) >= 7 and "+" not in clean
    (tmp_path / "benchmarks/results/speed.json").write_text("2")
    (tmp_path / "README.md").write_text("2")
    assert results.commit() == clean
    (tmp_path / "code.py").write_text("2")
    assert results.commit() == clean + "+"


@pytest.mark.parametrize(("share", "marked"), [(0.05, {}), (0.4, {"busy": 0.4})])
def test_what_is_measured_beside_other_programs_is_marked(
    share: float, marked: dict[str, float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "busy_share", lambda _: share)
    options = argparse.Namespace(save=True)
    results.mark_busy(options)
    assert {name: value for name, value in results.provenance(options).items() if name == "busy"} == marked
    assert ("others use 40%" in capsys.readouterr().err) == bool(marked)
    assert results.settings_of(options) == {}


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


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("| `sd` | 2.50 (1,250 ms) <!-- speed: a.0 / b; a.0 * 500 --> |", ""),
        ("`sd` at `gamma=4` is 2.5 times\nas fast <!-- speed: a.0 / b --> and 1 <!-- speed: b --> more", ""),
        ("2.5 and 3 <!-- speed.a: 0; 1 -->", ""),
        ("2 and 50 % <!-- speed.rows of 1.7B: of=7.share * 4; of=7,n=2.share * 100 -->", ""),
        ("3 in all, 1.5 each, 25 % more <!-- speed.rows of 1.7B: sum.n; mean.n; 0.n / 2 / 0.4 - 1 * 100 -->", ""),
        ("100 % of them, 50 % at most <!-- speed.rows of 1.7B: below 1.share * 100; max.share * 100 -->", ""),
        ("2.51 <!-- speed: a.0 / b -->", "prints 2.51 where a.0 / b of speed.json is 2.50"),
        ("2 <!-- speed: b; b; b; b -->", "has fewer numbers than figures"),
        ("2 <!-- speed: a.7 -->", "names a.7, which speed.json has not"),
        ("2 <!-- speed.rows of 1.7B: of=9.n -->", "names of=9.n"),
        ("9 <!-- models/draft/config: text_config.num_hidden_layers -->", "prints 9 where text_config"),
        ("2 <!-- other: a.0 -->", "which is not there"),
    ],
)
def test_a_page_prints_what_its_result_file_has(line: str, problem: str, tmp_path: Path) -> None:
    rows = [{"of": 7, "share": 0.5, "n": 1}, {"of": 7, "share": 0.5, "n": 2}]
    (tmp_path / "speed.json").write_text(json.dumps({"a": [2.5, 3], "b": 1, "rows of 1.7B": rows}))
    (page := tmp_path / "page.md").write_text(f"In 2026 there were 12 robots.\n\n{line}\n")
    found = results.page_problems(page, tmp_path)
    assert problem in found[0] if problem else found == []


def test_new_figures_are_printed_in_a_page_as_the_old_ones_were(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps({"a": 1234.56, "b": -0.5, "c": 7}))
    page = tmp_path / "page.md"
    line = "`gamma=4`: {} <!-- speed: a; a; a / 1000 -->, 12 robots\n{}, `fsd` 7 <!-- speed: b; c -->"
    page.write_text(line.format("998 ms, 1,000 bytes, 3.00", "0.1"))
    changed = results.renew_page(page, tmp_path)
    assert page.read_text() == line.format("1235 ms, 1,235 bytes, 1.23", "-0.5")
    assert [change.split(": ")[1] for change in changed] == [
        "998 is now 1235, a of speed.json", "1,000 is now 1,235, a of speed.json",
        "3.00 is now 1.23, a / 1000 of speed.json", "0.1 is now -0.5, b of speed.json",
    ]  # fmt: skip
    assert results.renew_page(page, tmp_path) == [] == results.page_problems(page, tmp_path)
    page.write_text("7 <!-- speed: d -->")
    with pytest.raises(ValueError, match="names d, which"):
        results.renew_page(page, tmp_path)


@pytest.mark.parametrize("page", [PROJECT / "README.md", PROJECT / "models" / "README.md", *PROJECT.glob("docs/*.md")])
def test_every_marked_figure_of_the_pages_is_that_of_its_result_file(page: Path) -> None:
    assert results.page_problems(page) == []
