"""The one command: which programs run, with what, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__
from vlm_nav_evaluation.__main__ import parser as evaluation_parser


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that were run, in place of running them; those of peers fail."""
    lines: list[list[str]] = []

    def run(line: Sequence[str], check: bool, **_: object) -> SimpleNamespace:
        if "git" not in line:
            lines.append(list(line[2:]))
        return SimpleNamespace(returncode=2 if "benchmarks.peers" in line else 0, stdout="0a1b2c3d")

    monkeypatch.setattr(__main__.subprocess, "run", run)  # type: ignore[attr-defined]
    return lines


def test_everything_runs_though_one_fails(ran: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--quick", "--out", "elsewhere"]) == 2
    asked = [line for line in ran if "benchmarks.recordings" not in line]
    assert [line[0] for line in asked] == [each.words.split()[0] for each in __main__.PROGRAMS.values()]
    for name, line in zip(__main__.PROGRAMS, asked, strict=True):
        own = __main__.PROGRAMS[name].result
        assert line[-2:] == ["--out", f"elsewhere/{name}"] if own else line[-3:] == ["--quick", "--out", "elsewhere"]
    printed = capsys.readouterr().out
    assert "failed, exit code 2" in printed and printed.count(" done") == len(__main__.PROGRAMS) - 1


def test_a_run_that_was_stopped_goes_on_with_what_it_had_not_finished(
    ran: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "tune,peers,latency", "--journal", str(tmp_path)]
    assert __main__.main(words) == 2
    assert len(ran) == 3 and ran[2][-2:] == ["--journal", str(tmp_path / "latency")]
    assert __main__.main(words) == 2
    assert [line[0] for line in ran[3:]] == ["benchmarks.peers"], "the others are done"
    assert capsys.readouterr().out.count("done before, at commit") == 2
    assert __main__.main([*words, "--quick"]) == 2 and len(ran) == 4
    assert "quick was False and is True" in capsys.readouterr().err
    assert __main__.main([*words, "--quick", "--restart"]) == 2 and len(ran) == 7


def test_a_result_without_save_of_its_own_is_kept(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__main__.results, "RESULTS", tmp_path)  # type: ignore[attr-defined]
    (tmp_path / "out" / "bars").mkdir(parents=True)
    (tmp_path / "out" / "bars" / "bars.json").write_text("{}")
    words = ["--only", "bars", "--out", str(tmp_path / "out")]
    assert __main__.main(words) == 0 and not (tmp_path / "bars.json").exists()
    assert __main__.main([*words, "--save"]) == 0 and (tmp_path / "bars.json").read_text() == "{}"
    assert ran[0] == ran[1], "the program itself has no --save"


OWN_PARSER = [name for name, each in __main__.PROGRAMS.items() if each.words.startswith("benchmarks.")]


@pytest.mark.parametrize("name", OWN_PARSER)
def test_the_words_of_a_program_are_its_own(name: str, tmp_path: Path) -> None:
    """Every command line can be read, with what this one adds; --quick decides over steps."""
    options = __main__.parser().parse_args(["--quick", "--out", str(tmp_path)])
    *_, line = __main__.commands(name, options)
    module = import_module(line[2])
    read = module.parser().parse_args(line[3:])
    assert read.quick and read.out == tmp_path
    assert not getattr(read, "steps", None)


@pytest.mark.parametrize("name", [name for name in __main__.PROGRAMS if name not in OWN_PARSER])
@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_the_words_of_an_evaluation_can_be_read(name: str, quick: list[str], tmp_path: Path) -> None:
    *_, line = __main__.commands(name, __main__.parser().parse_args([*quick, "--out", str(tmp_path)]))
    out = evaluation_parser().parse_args(line[3:]).out
    assert out == (tmp_path / name if __main__.PROGRAMS[name].result else tmp_path)
