"""Messages made from the wire's own schema: valid ones, ones at and beyond every limit, and bytes that are none.

All of it is drawn from one source of random numbers, so that a seed names everything that is sent.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import inspect

from speculation import wire
from tests.hostile import mutated

KINDS: tuple[type[wire.Message], ...] = get_args(wire.AnyMessage)
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e308, float("nan"), float("inf"), "",
    "\x1b[2J\n2026-01-01 ERROR forged", "\u202e", b"", b"\xff", [], [[]], {}, {"a": 1}, [None],
    msgspec.msgpack.Ext(5, b"x"),
)  # fmt: skip
LARGE = 1 / 4000
"""How often a long text or many bytes are as long as they may be, or longer: what the others are about is not size."""
WORDS = (
    "find", "the", "silver", "bottle", "long", "Action:", "stop", "forward", "large", "turn", "left", "small\n\t",
    "\x00\x1b[0m", "\u202e\U0001f916", "é",
)  # fmt: skip


@cache
def fields_of(kind: type[wire.Message]) -> tuple[inspect.Field, ...]:
    """Return the fields of a kind of message, in the order of its array."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _range(kind: inspect.IntType | inspect.FloatType, largest: float) -> tuple[Any, Any]:
    one = 1 if isinstance(kind, inspect.IntType) else 5e-324
    least = kind.ge if kind.ge is not None else kind.gt + one if kind.gt is not None else -largest
    most = kind.le if kind.le is not None else kind.lt - one if kind.lt is not None else largest
    return least, most


def valid(kind: inspect.Type, rng: random.Random) -> Any:
    """Return a value that a field of this type takes, often one at a limit."""
    match kind:
        case inspect.UnionType():
            return valid(rng.choice(kind.types), rng)
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.EnumType():
            return rng.choice(list(kind.cls)).value
        case inspect.IntType():
            least, most = _range(kind, 2**63 - 1)
            draw = rng.randrange(8)
            if draw == 0:
                return least
            if draw == 1:
                return most
            return rng.randint(least, min(most, least + rng.choice((8, 8, 64, 2**20))))
        case inspect.FloatType():
            least, most = _range(kind, 1e300)
            return rng.choice((least, most, least + (most - least) * rng.random(), min(most, max(least, rng.random()))))
        case inspect.StrType():
            letters = _letters(_length(kind.min_length, kind.max_length, rng), rng)
            return "".join(each for each in letters if each.isprintable()) or "a" if kind.pattern else letters
        case inspect.BytesType():
            return rng.randbytes(_length(kind.min_length, kind.max_length, rng))
        case inspect.ListType() | inspect.VarTupleType():
            return [valid(kind.item_type, rng) for _ in range(_length(kind.min_length, kind.max_length, rng))]
        case inspect.StructType():
            return [valid(field.type, rng) for field in kind.fields]
    raise NotImplementedError(f"the wire has a new type of field, {kind}: give it values here")


def invalid(kind: inspect.Type, rng: random.Random) -> Any:
    """Return a value just beyond a limit of a field of this type, or of another type."""
    if rng.random() < 0.3:
        return rng.choice(STRANGE)
    match kind:
        case inspect.UnionType():
            return invalid(rng.choice(kind.types), rng)
        case inspect.IntType():
            least, most = _range(kind, 2**63 - 1)
            return rng.choice((least - 1, most + 1))
        case inspect.FloatType():
            least, most = _range(kind, 1e300)
            return rng.choice((float("nan"), float("inf"), -1e-9 + least, most * 1.001 + 1e-9))
        case inspect.StrType() | inspect.BytesType():
            most = kind.max_length or 0
            if isinstance(kind, inspect.StrType) and kind.pattern and rng.random() < 0.5:
                return "a\n\x1b[2J"
            size = most + 1 if most < 2000 or rng.random() < LARGE else max(0, (kind.min_length or 1) - 1)
            return "x" * size if isinstance(kind, inspect.StrType) else b"x" * size
        case inspect.ListType() | inspect.VarTupleType():
            items = [valid(kind.item_type, rng) for _ in range(_length(1, kind.max_length, rng))]
            if rng.random() < 0.5:
                items[rng.randrange(len(items))] = invalid(kind.item_type, rng)
                return items
            return (items * (1 + (kind.max_length or 0) // len(items)))[: (kind.max_length or 0) + 1]
        case inspect.StructType():
            values = valid(kind, rng)
            at = rng.randrange(len(values))
            values[at] = invalid(kind.fields[at].type, rng)
            return values
    return rng.choice(STRANGE)


def any_message(rng: random.Random) -> bytes:
    """Return a message of any kind whose fields are all within their limits."""
    kind = rng.choice(KINDS)
    return pack([kind.__struct_config__.tag, *(valid(field.type, rng) for field in fields_of(kind))])


def bent(message: wire.AnyMessage, rng: random.Random) -> bytes:
    """Return a message with one or two of its fields changed: another valid value, one beyond a limit, one too many."""
    content: list[Any] = msgspec.msgpack.decode(wire.encode(message))
    fields = fields_of(type(message))
    for _ in range(rng.choice((1, 1, 2))):
        draw = rng.randrange(12)
        at = rng.randrange(len(fields))
        if draw == 0:
            del content[rng.randrange(len(content)) :]
        elif draw == 1:
            content.append(rng.choice(STRANGE))
        elif draw == 2:
            content[0:1] = [rng.choice((0, 1, 14, 15, 127, 128, 255, 2**32, -1, "Hello", None))]
        elif at + 1 < len(content):
            content[at + 1] = (valid if draw < 8 else invalid)(fields[at].type, rng)
        if not content:
            break
    return pack(content)


def pack(content: list[Any]) -> bytes:
    """Return the msgpack bytes of an array, whatever is in it that msgpack has."""
    try:
        return msgspec.msgpack.encode(content)
    except (OverflowError, UnicodeEncodeError):  # beyond 64 bits there is nothing to send
        return b"\xc1"


def disturbed(good: wire.AnyMessage, history: MutableSequence[bytes], rng: random.Random) -> bytes:
    """Return a message as it is, bent, spoiled, or any other one, of those before too; `history` takes it in."""
    payload, draw = wire.encode(good), rng.random()
    history.append(payload)
    if draw < 0.55:
        return payload
    if draw < 0.75:
        return bent(good, rng)
    if draw < 0.87:
        return mutated([payload, rng.choice(history)], rng)
    return any_message(rng) if draw < 0.93 else rng.choice(history)


def text(rng: random.Random) -> str:
    """Return a short text of words, with what terminals and tokenizers stumble over among them."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))


def _length(least: int | None, most: int | None, rng: random.Random) -> int:
    low, high = least or 0, most if most is not None else 64
    draw = rng.random()
    if draw < LARGE or (draw < 0.1 and high <= 64):
        return high
    return low if draw < 0.3 else min(high, low + rng.randrange(1, 12))


def _letters(count: int, rng: random.Random) -> str:
    if count <= 1 or count > 256:
        return "a" * count
    written = text(rng)
    return (written * (1 + count // len(written)))[:count]
