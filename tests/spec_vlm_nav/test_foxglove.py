"""The Foxglove layout against the graph: every topic is published by a node, every field is in its message type."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from spec_vlm_nav.runner import SOURCE
from vlm_nav_evaluation.bags.files import typestore

LAYOUT = json.loads((SOURCE / "config" / "foxglove.json").read_text())
PANELS: dict[str, Any] = LAYOUT["configById"]


class Publisher(NamedTuple):
    """A publisher whose topic is written in a node's source."""

    kind: str
    qos: str
    """As it is written there."""


@cache
def publishers() -> dict[str, Publisher]:
    """Return them by topic."""
    found = {}
    for path in (SOURCE / "spec_vlm_nav" / "nodes").glob("*.py"):
        tree = ast.parse(path.read_text())
        packages = {
            alias.name: node.module.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.endswith(".msg")
            for alias in node.names
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "create_publisher":
                kind, topic, qos = call.args[:3]
                # of two types the one without its parameter
                kind = kind.orelse if isinstance(kind, ast.IfExp) else kind
                if isinstance(kind, ast.Name) and isinstance(topic, ast.Constant) and kind.id in packages:
                    name = f"/{topic.value.lstrip('/')}"
                    found[name] = Publisher(f"{packages[kind.id]}/msg/{kind.id}", ast.unparse(qos))
    return found


def paths(config: object) -> Iterator[str]:
    """Yield every message path (/topic or /topic.field.field) of a panel; a map has topics as keys."""
    if isinstance(config, str) and config.startswith("/"):
        yield config
    if isinstance(config, dict):
        yield from (key for key in config if key.startswith("/"))
    for part in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from paths(part)


def field_type(kind: str, fields: list[str]) -> object:
    """Return the type of a field of a field ... of a message type; KeyError if there is none."""
    for field in fields:
        members = {name: of for name, (_, of) in typestore().fielddefs[kind][1]}
        kind = members[field]
    return kind


@pytest.mark.parametrize("panel", PANELS)
def test_every_path_of_a_panel_is_published_and_every_field_exists(panel: str) -> None:
    topics, found = publishers(), sorted(set(paths(PANELS[panel])))
    assert found, "a panel that shows nothing"
    for path in found:
        topic, *fields = path.split(".")
        assert topic in topics, f"no node publishes {topic}"
        kind = field_type(topics[topic].kind, fields)
        if panel.startswith("Plot!"):
            assert isinstance(kind, tuple) and kind[0] in ("float32", "float64", "uint32"), f"{path} is no number"
