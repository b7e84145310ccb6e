"""Answers that are JSON of a schema: which schemas are taken, and that whatever tokens are allowed spell such JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.language.json_schema import MAX_SIZE, SchemaAutomaton, expression, schema_automaton
from speculation.wire import MAX_SCHEMA_CHARS

WORDS = (
    *(bytes([byte]) for byte in range(256)), b"", b'{"', b'":', b'","', b"true", b"left", b'"left"', b"  ",
    b"\xc3\xa9", b'"}',
)  # fmt: skip
"""All bytes, as a byte-level tokenizer has, an end token and some longer ones."""
END = 256
VIEW = {
    "type": "object",
    "properties": {
        "seen": {"type": "boolean"},
        "where": {"enum": ["left", "right", None]},
        "note": {"type": "string", "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["seen", "where"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "view": VIEW, "text": {"type": "string"}, "nothing or a number": {"type": ["null", "number"]},
    "choice": {"anyOf": [{"type": "integer"}, {"const": "é"}]},
    "all optional": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"const": 1}}},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}, "maxItems": 3},
    "odd names": {
        "type": "object", "properties": {'"\\\n.*': {"type": "null"}, "é": {"const": '"'}}, "required": ['"\\\n.*'],
    },
    "counted": {"type": "string", "minLength": 2, "maxLength": 200},
}  # fmt: skip


def automaton(schema: Any) -> SchemaAutomaton:
    return schema_automaton(json.dumps(schema), WORDS, (END,))


def fits(value: Any, schema: Any) -> bool:
    """Whether a value is of a schema, in the part of the language that is used here."""
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if isinstance(schema["type"], list):
        return any(fits(value, {"type": each}) for each in schema["type"])
    if schema["type"] == "object":
        known = schema["properties"]
        return set(schema.get("required", ())) <= value.keys() <= known.keys() and all(
            fits(each, known[name]) for name, each in value.items()
        )
    if schema["type"] == "array":
        few, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        return few <= len(value) <= most and all(fits(each, schema["items"]) for each in value)
    if schema["type"] == "string":
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    kinds = {"boolean": bool, "null": type(None), "integer": int, "number": (int, float)}
    return isinstance(value, kinds[schema["type"]]) and not (schema["type"] != "boolean" and isinstance(value, bool))


@settings(max_examples=25)
@given(st.sampled_from(sorted(SCHEMAS)), st.integers(0, 2**32), st.integers(0, 60))
def test_whatever_is_allowed_spells_json_of_the_schema_in_the_tokens_that_are_left(
    name: str, seed: int, more: int
) -> None:
    grammar, dice = automaton(SCHEMAS[name]), random.Random(seed)
    most = grammar.least_tokens + more
    state, said = grammar.start(most), b""
    for _ in range(most):
        tokens = grammar.allowed(state).mask.nonzero()[0].tolist()
        token = dice.choice(tokens)
        if token == END:
            break
        said += WORDS[token]
        following = grammar.next(state, token)
        assert following is not None
        state = following
    assert fits(json.loads(said), SCHEMAS[name]), said


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (True, "give an object"), ({}, "type null"), ({"type": "file"}, "none of"), ({"type": "array"}, "no items"),
        ({"type": "object"}, "no properties"), ({"type": ["string", "array"]}, "anyOf"),
        ({"type": "string", "pattern": "(a*)*"}, "'pattern'"), ({"type": "string", "maxLength": 201}, "0 to 200"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "more than"), ({"enum": []}, "no list"),
        ({"type": "string", "maxLength": True}, "maxLength"), ({"anyOf": [{"type": "x"}]}, "none of"),
        (VIEW | {"additionalProperties": True}, "additionalProperties"), (VIEW | {"required": ["x"]}, "no property"),
        ({"type": "array", "items": {"type": "string", "maxLength": 100}, "maxItems": 16}, f"limit is {MAX_SIZE}"),
        ({"enum": ["x" * MAX_SCHEMA_CHARS]}, "characters exceeds"),
        ({"type": "integer", "minimum": 3}, "'minimum'"), ({"oneOf": [{"type": "null"}]}, "'oneOf'"),
        ({"enum": [[{".*": 1}]]}, "enum has an object"), ({"const": "\ud800"}, "surrogates"),
        ({"properties": VIEW["properties"]}, "type null"), ({"$ref": "#"}, "own .defs"),
        ({"$ref": "#/$defs/a", "$defs": 5}, "own .defs"), ({"$ref": "#/$defs/a", "$defs": {"a": 5}}, "give an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "names itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": VIEW}, "type": "object"}, "'type'"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named(schema: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        expression(json.dumps(schema))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        expression(text)


def test_references_are_what_they_name() -> None:
    pair = {"type": "object", "properties": {"a": {"$ref": "#/$defs/way", "description": "b"}, "b": VIEW}}
    defined = {"$ref": "#/$defs/pair", "$defs": {"way": {"enum": ["left", "right"]}, "pair": pair}}
    written = pair | {"properties": {"a": {"enum": ["left", "right"]}, "b": VIEW}}
    assert expression(json.dumps(defined)) == expression(json.dumps(written))
