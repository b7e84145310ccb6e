"""Answers that are JSON of a schema: which schemas are taken, and their automaton (numpy and outlines-core, no torch).

A schema's automaton over 150,000 tokens may take gigabytes, as inside of a string nearly every token may follow. So it
is made over bytes, and what tokens may follow a place is found when an answer stands there, for all tokens at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from outlines_core.json_schema import build_regex_from_schema

from speculation.language.grammar import FAR, Automaton, State, compiled, distances
from speculation.wire import MAX_SCHEMA_CHARS, Grammar

MAX_DEPTH, MAX_CHARACTERS, MAX_ITEMS = 8, 200, 16
"""How deep a schema may be nested, and the longest string and array that it may name."""
MAX_SIZE = 400
"""Characters of all its strings, names and choices, those of an array as often as it may have items. To make its
automaton takes a second then at most."""
MAX_REFERENCES = 64
"""So many references are followed, those in what they name included; one that names itself has no end."""
KEPT_ROWS = 64
"""Places whose tokens are kept; with a vocabulary of 150,000 each may take a megabyte."""
_NUMBER: Final = 20
_NOTES: Final = frozenset({"title", "description", "default", "examples", "$schema"})
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
_KNOWN: Final = {
    "string": {"minLength", "maxLength"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_OUT: Final = -1

_Ints = npt.NDArray[np.int32]


def expression(schema: str) -> str:
    """Return the regular expression of JSON of a schema. Raises ValueError, naming what of it is not taken."""
    if len(schema) > MAX_SCHEMA_CHARS:
        raise ValueError(f"the schema of {len(schema)} characters exceeds the limit of {MAX_SCHEMA_CHARS}")
    try:
        held = json.loads(schema)
        definitions = held.pop("$defs", {}) if isinstance(held, dict) else {}
        held = _plain(held, definitions, iter(range(MAX_REFERENCES)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the schema is no JSON: {error}") from None
    size = _size(held, 0)
    if size > MAX_SIZE:
        raise ValueError(
            f"the schema allows for answers that are too long to be kept to it (size {size}, the limit is {MAX_SIZE}); "
            "give shorter maxLength and maxItems"
        )
    return str(build_regex_from_schema(json.dumps(held, ensure_ascii=False)))


def _plain(part: Any, definitions: Any, references: Iterator[int]) -> Any:
    """Return a part of a schema with definitions in the place of references, and all names as JSON spells them.

    outlines-core spells choices so by itself, but not names. Raises ValueError for a reference that leads nowhere.
    """
    if isinstance(part, list):
        return [_plain(each, definitions, references) for each in part]
    if not isinstance(part, dict):
        return part
    wanted = part.get("$ref")
    if isinstance(wanted, str):
        _check_keys(part, {"$ref"})
        name = wanted.removeprefix("#/$defs/")
        if not isinstance(definitions, dict) or name not in definitions:
            raise ValueError(f"$ref {wanted[:60]!r} names nothing of the schema's own $defs; give '#/$defs/NAME'")
        if next(references, None) is None:
            raise ValueError(f"more than {MAX_REFERENCES} references, or a definition that names itself; write it out")
        return _plain(definitions[name], definitions, references)
    plain = {_spelled(name): _plain(each, definitions, references) for name, each in part.items()}
    if isinstance(part.get("required"), list):
        plain["required"] = [_spelled(each) for each in part["required"]]
    return plain


def _spelled(name: Any) -> Any:
    return json.dumps(name, ensure_ascii=False)[1:-1] if isinstance(name, str) else name


def _size(schema: Any, depth: int) -> int:
    """Return how large the automaton of a part of a schema will be, in characters. Raises ValueError."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the schema is nested more than {MAX_DEPTH} deep")
    if not isinstance(schema, dict):
        raise ValueError(f"a part of the schema is {json.dumps(schema)[:40]}; give an object")
    for choice in ("enum", "const", "anyOf"):
        if choice in schema:
            _check_keys(schema, {choice, "type"})
            return _choices(schema[choice], choice, depth)
    kind = schema.get("type")
    if isinstance(kind, list):
        _check_keys(schema, {"type"})
        if not kind or not all(isinstance(each, str) and each in _SCALARS for each in kind):
            raise ValueError(f"a list of types has {', '.join(sorted(_SCALARS))} only; give anyOf for others")
        return _NUMBER * len(kind)
    if kind is None:  # a word that is not taken says more than a type that is missing
        _check_keys(schema, {"anyOf", "const", "enum", "type"}.union(*_KNOWN.values()))
    if not isinstance(kind, str) or kind not in _SCALARS | _KNOWN.keys():
        raise ValueError(f"type {json.dumps(kind)[:40]} is none of {', '.join(sorted(_SCALARS | _KNOWN.keys()))}")
    _check_keys(schema, {"type", *_KNOWN.get(kind, ())})
    if kind == "object":
        return _members(schema, depth)
    if kind == "array":
        if "items" not in schema:
            raise ValueError("an array has no items; say what they are")
        return _size(schema["items"], depth + 1) * max(1, _limit(schema, "minItems", "maxItems", MAX_ITEMS))
    return max(_NUMBER, _limit(schema, "minLength", "maxLength", MAX_CHARACTERS)) if kind == "string" else _NUMBER


def _choices(held: Any, choice: str, depth: int) -> int:
    if choice != "anyOf" and _has_object(held):  # outlines-core takes their names for regular expressions
        raise ValueError(f"{choice} has an object; give anyOf of objects with properties")
    if choice == "const":
        return len(json.dumps(held))
    if not isinstance(held, list) or not held:
        raise ValueError(f"{choice} is no list of choices")
    return sum(_size(each, depth + 1) if choice == "anyOf" else len(json.dumps(each)) for each in held)


def _has_object(held: Any) -> bool:
    return isinstance(held, dict) or (isinstance(held, list) and any(map(_has_object, held)))


def _members(schema: Mapping[str, Any], depth: int) -> int:
    members, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(members, dict) or not members:
        raise ValueError("an object has no properties; name them")
    if schema.get("additionalProperties", False) is not False:
        raise ValueError("additionalProperties is not false; name all properties")
    if not isinstance(required, list) or not all(isinstance(each, str) and each in members for each in required):
        raise ValueError("required names what is no property")
    size = sum(len(name) + _size(each, depth + 1) for name, each in members.items())
    # Where all may be left out there is an alternative for each that may come last.
    return size if required else size * len(members)


def _limit(schema: Mapping[str, Any], least: str, most: str, limit: int) -> int:
    """Return how many places in a row something takes; it repeats one where there is no most. Raises ValueError."""
    for name in (least, most):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise ValueError(f"{name} is {json.dumps(value)[:40]}; give 0 to {limit}")
    few = int(schema.get(least, 0))
    if schema.get(most, few) < few:
        raise ValueError(f"{least} {few} is more than {most} {schema[most]}")
    return int(schema.get(most, few + 1))


def _check_keys(schema: Mapping[str, Any], known: set[str]) -> None:
    unknown = schema.keys() - known - _NOTES
    if unknown:
        name = sorted(unknown)[0]
        raise ValueError(f"{name!r} is not taken in a schema, beside {', '.join(sorted(known))}; leave it out")


class SchemaAutomaton(Automaton):
    """The automaton of one schema over one vocabulary. Whether an answer can be completed is counted in bytes, of
    which every token spells one at least."""

    def __init__(self, schema: str, words: Sequence[bytes], ends: Sequence[int]) -> None:
        """See `Automaton`. Raises ValueError, naming what of the schema is not taken."""
        self.name = Grammar.FREE
        self._ends = tuple(ends)
        self._words = [b"" if token in ends else word for token, word in enumerate(words)]
        table = compiled(expression(schema), [bytes([byte]) for byte in range(256)])
        self._start, self._final = table.start, table.final
        bytewise = np.full((len(table.rows), 256), _OUT, dtype=np.int32)
        for place, (ids, places) in enumerate(table.rows):
            bytewise[place, ids] = places
        self._rows = _Rows(bytewise, tuple(self._words))
        nothing = np.zeros(len(words), dtype=np.int32)
        self._costs, self._longest, self._breaks = (nothing, nothing), 0, np.zeros(len(words), dtype=np.bool_)
        # In bytes, of which every token spells one at least.
        self._distance = distances(table.final, [set(places.tolist()) for _, places in table.rows])
        self._farthest = int(self._distance[self._distance < FAR].max())
        self.least_tokens = int(self._distance[self._start])
        self._known = {}

    def start(self, max_tokens: int) -> State:
        return State(self._start, False, 0, max_tokens)


class _Rows(Sequence[tuple[_Ints, _Ints]]):
    """What `Table.rows` has of every place, made when it is asked for."""

    def __init__(self, bytewise: _Ints, words: tuple[bytes, ...]) -> None:
        self._bytewise, self._words = bytewise, words
        self._kept: dict[int, tuple[_Ints, _Ints]] = {}

    def __len__(self) -> int:
        return len(self._bytewise)

    def __getitem__(self, place: Any) -> Any:
        found = self._kept.get(place)
        if found is None:
            found = self._find(place)
            while len(self._kept) >= KEPT_ROWS:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[place] = found
        return found

    def _find(self, place: int) -> tuple[_Ints, _Ints]:
        tokens, text, begins, sizes = _laid_out(self._words)
        places = np.full(len(tokens), place, dtype=np.int32)
        alive = np.arange(len(tokens))
        for column in range(int(sizes.max(initial=0))):
            alive = alive[sizes[alive] > column]
            if not alive.size:
                break
            places[alive] = self._bytewise[places[alive], text[begins[alive] + column]]
            alive = alive[places[alive] != _OUT]
        fits = places != _OUT
        return tokens[fits], places[fits]


@lru_cache(maxsize=4)
def _laid_out(words: tuple[bytes, ...]) -> tuple[_Ints, npt.NDArray[np.uint8], npt.NDArray[np.int64], _Ints]:
    """Return the tokens that spell something, the bytes of all of them, where each begins in these, and their sizes."""
    tokens = np.array([token for token, word in enumerate(words) if word], dtype=np.int32)
    sizes = np.array([len(words[token]) for token in tokens], dtype=np.int32)
    begins = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)[:-1]])
    return tokens, np.frombuffer(b"".join(words), dtype=np.uint8), begins, sizes


def schema_automaton(schema: str, words: tuple[bytes, ...], ends: Sequence[int]) -> SchemaAutomaton:
    """Return the automaton of a schema, kept from one answer to the next. Raises ValueError as `SchemaAutomaton`."""
    return _automaton(schema, words, tuple(ends))


@lru_cache(maxsize=8)
def _automaton(schema: str, words: tuple[bytes, ...], ends: tuple[int, ...]) -> SchemaAutomaton:
    return SchemaAutomaton(schema, words, ends)
