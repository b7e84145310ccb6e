"""docs/limits.md has every field of every message with its limits, as the wire has them, and the constants it names."""

from __future__ import annotations

import re
from importlib import import_module
from typing import get_args

import pytest
from msgspec import inspect

from speculation import wire
from speculation.wire import Grammar, Masses, Sight, Thinking, encode
from tests.test_docs import ROOT, cells, table

PAGE = "docs/limits.md"
STRUCTS = (*get_args(wire.AnyMessage), Masses, Sight, Thinking)


def number(value: float) -> str:
    """Return a number as the page has it: 2^32 - 1, 12,000, 0.5."""
    if isinstance(value, int) and value >= 2**16 and value & (value + 1) == 0:
        return f"2^{value.bit_length()} - 1"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def between(least: str | None, most: str | None) -> str:
    """Return a range in words. Raises AssertionError for none: every field has its limits."""
    assert least or most
    return f"{least} to {most}" if least and most else f"at most {most}" if most else f"at least {least}"


def counted(kind: inspect.StrType | inspect.BytesType | inspect.ListType | inspect.VarTupleType, what: str) -> str:
    assert kind.max_length is not None, f"{kind} has no upper limit"
    if kind.min_length == kind.max_length:
        return f"{number(kind.max_length)} {what}"
    return f"{between(number(kind.min_length) if kind.min_length else None, number(kind.max_length))} {what}"


def limits(kind: inspect.Type) -> str:
    """Return what a field takes, in words."""
    match kind:
        case inspect.UnionType():
            return " or ".join(
                limits(each) for each in sorted(kind.types, key=lambda t: isinstance(t, inspect.NoneType))
            )
        case inspect.NoneType():
            return "none"
        case inspect.BoolType():
            return "true or false"
        case inspect.EnumType():
            return ", ".join(f"{member.value} ({member.name})" for member in kind.cls)
        case inspect.IntType():
            least = kind.ge if kind.ge is not None else kind.gt + 1  # type: ignore[operator]
            most = kind.le if kind.le is not None else kind.lt - 1  # type: ignore[operator]
            return between(number(least), number(most))
        case inspect.FloatType():
            most = None if kind.le is None else f"at most {number(kind.le)}"
            least = None if kind.ge is None else f"at least {number(kind.ge)}"
            least = least or f"above {number(kind.gt)}"  # type: ignore[arg-type]
            return f"{least}, {most or 'finite'}"
        case inspect.StrType():
            return counted(kind, "characters" if kind.pattern is None else "printable characters")
        case inspect.BytesType():
            return counted(kind, "bytes")
        case inspect.ListType() | inspect.VarTupleType():
            return f"{counted(kind, 'entries')}, each {limits(kind.item_type)}"
        case inspect.StructType():
            return f"`{kind.cls.__name__}`"
    raise AssertionError(f"the wire has a new type of field: {kind}")


def rows() -> list[list[str]]:
    """Return the table of all fields."""
    found = []
    for struct in STRUCTS:
        described = inspect.type_info(struct)
        assert isinstance(described, inspect.StructType)
        found += [[f"`{struct.__name__}.{field.name}`", limits(field.type)] for field in described.fields]
    return found


def test_every_field_of_every_message_is_listed_with_its_limits() -> None:
    expected = "\n".join(f"| {name} | {text} |" for name, text in rows())
    assert table(PAGE, "Fields") == rows(), f"the table is to be:\n{expected}"


def test_every_constant_is_as_the_code_has_it() -> None:
    listed = [row for heading in ("Messages as they arrive", "Frames") for row in table(PAGE, heading)]
    assert len(listed) > 8
    for _, name, value, _ in listed:
        module, _, constant = name.strip("`").rpartition(".")
        assert number(getattr(import_module(module), constant)) == value, name


@pytest.mark.parametrize("name", ["Draft.parents", "Masses.weights", "Commit.features", "BeginStep.jpeg"])
def test_what_fields_must_be_together_is_named(name: str) -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    section = text.split("## Fields that must fit each other\n")[1].split("\n## ")[0]
    assert re.search(rf"`{re.escape(name)}`", section)
    assert all(len(cells(line)) == 2 for line in section.splitlines() if line.startswith("|"))


def test_the_largest_message_of_each_kind_is_below_the_limit_of_all() -> None:
    """What no field forbids, size does: but for frames and distributions every message fits its receiver's buffer."""
    token = 2**20 - 1
    asked = wire.BeginStep(
        2**32 - 1, "\U0001f916" * wire.MAX_PROMPT_CHARS, bytes(wire.MAX_IMAGE_BYTES), [token] * wire.MAX_ANSWER_TOKENS,
        wire.MAX_ANSWER_TOKENS, hints=[[token] * wire.MAX_DRAFT_TOKENS] * 8, key=2**63 - 1,
        trace=bytes(wire.TRACE_BYTES), grammar=max(Grammar),
    )  # fmt: skip
    assert len(encode(asked)) < wire.MAX_MESSAGE_BYTES
