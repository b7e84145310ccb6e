"""The one command: which programs run, with what, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, ClassVar

import pytest

from benchmarks import __main__
from vlm_nav_evaluation.__main__ import parser as evaluation_parser


class Ran:
    """A program that ends when it is asked for the second time; that of peers fails."""

    lines: ClassVar[list[list[str]]] = []
    now: ClassVar[list[str]] = []
    most: ClassVar[list[list[str]]] = []
    """The names of the programs that ran, each time that one began."""

    def __init__(self, line: Sequence[str], stdout: IO[bytes] | None = None, **_: object) -> None:
        self.name, self.asked = line[2], 0
        self.lines.append(list(line[2:]))
        self.now.append(self.name)
        self.most.append(list(self.now))
        if stdout:
            stdout.write(f"table of {self.name}\n".encode())

    def poll(self) -> int | None:
        self.asked += 1
        if self.asked < 2:
            return None
        self.now.remove(self.name)
        return 2 if self.name == "benchmarks.peers" else 0

    def terminate(self) -> None:
        self.now.remove(self.name)

    def wait(self) -> int:
        return -15


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that were run, in place of running them."""
    for each in (Ran.lines, Ran.now, Ran.most):
        each.clear()
    monkeypatch.setattr(__main__, "subprocess", SimpleNamespace(Popen=Ran, STDOUT=None))
    monkeypatch.setattr(__main__, "POLL_S", 0.0)
    return Ran.lines


def test_everything_runs_though_one_fails(
    ran: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["--quick", "--out", str(tmp_path)]) == 2
    assert [line[0] for line in ran] == [each.words.split()[0] for each in __main__.PROGRAMS.values()]
    for name, line in zip(__main__.PROGRAMS, ran, strict=True):
        if name != __main__.RECORDING:
            own = __main__.PROGRAMS[name].result
            expected = ["--out", str(tmp_path / name)] if own else ["--quick", "--out", str(tmp_path)]
            assert line[-len(expected) :] == expected
    printed = capsys.readouterr().out
    assert "failed, exit code 2" in printed and printed.count(" done") == len(__main__.PROGRAMS) - 1
    assert printed.count("table of benchmarks.tune\n") == 3 and max(map(len, Ran.most)) == __main__.PLACES


def test_what_measures_times_runs_alone(ran: list[list[str]], tmp_path: Path) -> None:
    words = "--only tune,latency,recording,break_even,robots,ablation"
    assert __main__.main([*words.split(), "--out", str(tmp_path)]) == 0
    timed = ["benchmarks.latency", "benchmarks.recordings", "benchmarks.robots"]
    assert Ran.most[:3] == [[name] for name in timed]
    two = ["benchmarks.tune", "benchmarks.break_even"]
    assert Ran.most[3:] == [two[:1], two, ["benchmarks.ablation"]]


def test_an_interruption_ends_what_runs(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "time", SimpleNamespace(sleep=interrupted, monotonic=lambda: 0.0))
    assert __main__.main(["--only", "tune,ablation", "--out", str(tmp_path)]) == 130
    assert len(ran) == 2 and not Ran.now and "goes on" in capsys.readouterr().err


def test_a_run_that_was_stopped_goes_on_with_what_it_had_not_finished(
    ran: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "tune,peers,latency", "--journal", str(tmp_path), "--out", str(tmp_path)]
    assert __main__.main(words) == 2
    assert [line[0] for line in ran] == ["benchmarks.peers", "benchmarks.latency", "benchmarks.tune"]
    assert ran[1][-2:] == ["--journal", str(tmp_path / "latency")]
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
OWN_PARSER.remove(__main__.RECORDING)


@pytest.mark.parametrize("name", OWN_PARSER)
def test_the_words_of_a_program_are_its_own(name: str, tmp_path: Path) -> None:
    """Every command line can be read, with what this one adds; --quick decides over steps."""
    options = __main__.parser().parse_args(["--quick", "--out", str(tmp_path)])
    line = __main__.command(name, options)
    module = import_module(line[2])
    read = module.parser().parse_args(line[3:])
    assert read.quick and read.out == tmp_path
    assert not getattr(read, "steps", None)


@pytest.mark.parametrize("name", [name for name in __main__.PROGRAMS if name not in (*OWN_PARSER, __main__.RECORDING)])
@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_the_words_of_an_evaluation_can_be_read(name: str, quick: list[str], tmp_path: Path) -> None:
    line = __main__.command(name, __main__.parser().parse_args([*quick, "--out", str(tmp_path)]))
    out = evaluation_parser().parse_args(line[3:]).out
    assert out == (tmp_path / name if __main__.PROGRAMS[name].result else tmp_path)
