"""The one command: which programs run, with what, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that were run, in place of running them; those of peers fail."""
    lines: list[list[str]] = []

    def run(line: Sequence[str], check: bool) -> SimpleNamespace:
        lines.append(list(line[2:]))
        return SimpleNamespace(returncode=2 if "benchmarks.peers" in line else 0)

    monkeypatch.setattr(__main__.subprocess, "run", run)  # type: ignore[attr-defined]
    return lines


def test_everything_runs_though_one_fails(ran: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--quick", "--out", "elsewhere"]) == 2
    programs = [line[0] for line in ran if "benchmarks.recordings" not in line]
    assert programs == [
        "benchmarks.tune", "benchmarks.tune", "benchmarks.tune", "benchmarks.latency", "benchmarks.latency",
        "benchmarks.peers", "benchmarks.sampling", "benchmarks.ablation", "benchmarks.break_even",
        "benchmarks.break_even", "benchmarks.robots", "benchmarks.robots", "vlm_nav_evaluation",
    ]  # fmt: skip
    assert all(line[-3:] == ["--quick", "--out", "elsewhere"] for line in ran if "benchmarks.recordings" not in line)
    printed = capsys.readouterr().out
    assert "failed, exit code 2" in printed and printed.count("done") == 12


@pytest.mark.parametrize("name", [name for name in __main__.PROGRAMS if name != "fleet"])
def test_the_words_of_a_program_are_its_own(name: str, tmp_path: Path) -> None:
    """Every command line can be read, with what this one adds; --quick decides over steps."""
    options = __main__.parser().parse_args(["--quick", "--out", str(tmp_path)])
    *_, line = __main__.commands(name, options)
    module = import_module(line[2])
    read = module.parser().parse_args(line[3:])
    assert read.quick and read.out == tmp_path
    assert not getattr(read, "steps", None)
