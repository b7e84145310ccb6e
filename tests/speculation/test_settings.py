"""Settings made from structs: flags, limits, nesting."""

from __future__ import annotations

import argparse
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from speculation.settings import CommandLine, add_flags, check, expanded, from_flags, path_flag


class Order(str, Enum):
    FIRST = "first"
    LAST = "last"


class Inner(msgspec.Struct, frozen=True):
    size: Annotated[int, Meta(ge=1, le=9, description="how many at once, 100 % at most")] = 3
    order: Annotated[Order, Meta(description="which one leaves first")] = Order.FIRST

    def __post_init__(self) -> None:
        check(self)


class Outer(msgspec.Struct, frozen=True):
    folder: Annotated[Path, Meta(description="where it is")]
    inner: Inner = Inner()
    keys: Annotated[Path | None, Meta(description="keys, if any")] = None
    threads: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="how many, if not all")] = None
    rate: Annotated[float, Meta(ge=0.5, le=2.0, description="per second")] = 1.0
    plain: Annotated[bool, Meta(description="without keys")] = False
    kind: Annotated[Literal["a", "b"], Meta(description="which kind")] = "a"
    careful: Annotated[bool, Meta(description="look twice")] = True

    def __post_init__(self) -> None:
        check(self)


def parsed(*words: str) -> Outer:
    line = argparse.ArgumentParser(exit_on_error=False)
    add_flags(line, Outer)
    return from_flags(Outer, line.parse_args(words))


def test_flags_become_the_nested_settings() -> None:
    got = parsed("--folder", "x", "--size", "5", "--order", "last", "--plain", "--keys", "k", "--kind", "b")
    assert got == Outer(Path("x"), Inner(5, Order.LAST), Path("k"), None, 1.0, True, "b")
    assert parsed("--folder", "x") == Outer(Path("x"))
    assert parsed("--folder", "x", "--plain", "false") == Outer(Path("x"))
    for words in (("--no-careful",), ("--careful", "false")):
        assert parsed("--folder", "x", *words) == Outer(Path("x"), careful=False)


def test_help_shows_description_and_default() -> None:
    line = argparse.ArgumentParser()
    add_flags(line, Outer, without=("keys",), defaults={"rate": 1.5})
    text = line.format_help()
    assert "100 % at most (default: 3)" in text and "per second (default: 1.5)" in text
    assert "--keys" not in text


@given(size=st.integers(-5, 20))
def test_a_value_outside_its_limits_is_refused_by_name(size: int) -> None:
    if 1 <= size <= 9:
        assert Inner(size).size == size
    else:
        with pytest.raises(ValueError, match=f"size {size} is outside 1 to 9"):
            Inner(size)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.4])
def test_a_number_must_be_finite_and_inside(rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate .* is outside 0\.5 to 2"):
        Outer(Path("x"), rate=rate)


def test_an_unknown_choice_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="kind 'c' is none of a, b"):
        Outer(Path("x"), kind="c")  # type: ignore[arg-type]
    with pytest.raises(argparse.ArgumentError, match="invalid choice"):
        parsed("--folder", "x", "--order", "middle")


def test_a_wrong_command_line_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    line = CommandLine(prog="robot")
    line.add_subparsers(dest="command", required=True).add_parser("walk").add_argument("--steps", type=int)
    for words, sentence in (
        ([], "robot: error: the following arguments are required: command; --help lists the options\n"),
        (["walk", "--steps", "x"], "robot walk: error: argument --steps: invalid int value: 'x'; --help lists the "
         "options\n"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            line.parse_args(words)
        assert capsys.readouterr().err == sentence


def test_a_home_folder_is_put_in_and_one_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/robot")
    assert expanded("~/m") == expanded(Path("~/m")) == path_flag("~/m") == Path("/home/robot/m")
    with pytest.raises(ValueError, match=r"^~nosuch/m: there is no such home folder$"):
        expanded("~nosuch/m")
    with pytest.raises(argparse.ArgumentTypeError, match=r"^~nosuch/m: there is no such home folder$"):
        path_flag("~nosuch/m")


def test_an_empty_path_is_not_the_working_folder() -> None:
    with pytest.raises(argparse.ArgumentError, match="--keys: it is empty"):
        parsed("--folder", "x", "--keys", "")
