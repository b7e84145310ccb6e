"""Parameters of the nodes: made from settings structs, described, limited, and the only ones that files name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from spec_vlm_nav.graph import GRAPHS, PROJECT
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.web import WEB
from spec_vlm_nav.parameters import LIMITS, NAVIGATOR, Parameters
from spec_vlm_nav.preflight import PARTS as CHECKED
from spec_vlm_nav.process_graph import NodeSpec
from spec_vlm_nav.simulated_go2 import ROBOT, ROOM
from vlm_nav_evaluation.nodes.bag_player import PLAYER

CONFIG = PROJECT / "ros_ws" / "src" / "spec_vlm_nav" / "config"
PARTS = {**CHECKED, "sim_go2": (ROOM, ROBOT), "bag_player": (PLAYER,), "web": (WEB,)}


def names(node: str) -> set[str]:
    return {name for part in PARTS[node] for name in part.fields()}


@pytest.fixture
def node(ros: None) -> Iterator[Node]:
    made = Node("tried")
    yield made
    made.destroy_node()


NODE_FILES = sorted(path for path in CONFIG.glob("*.yaml") if path.stem != "verifier")
"""The verifier's is the settings file of `serve`."""


@pytest.mark.parametrize("path", NODE_FILES, ids=lambda path: path.stem)
def test_parameter_files_name_known_parameters_within_their_limits(path: Path) -> None:
    read = msgspec.yaml.decode(path.read_bytes())
    assert read
    for key, content in read.items():
        name, values = key.rpartition("/")[2], content["ros__parameters"]
        assert set(values) <= names(name), f"{name} has no {set(values) - names(name)}"
        for part in PARTS.get(name, ()):
            given = {parameter: field.problem(values[parameter]) for parameter, field in part.fields().items()
                     if parameter in values}  # fmt: skip
            assert not any(given.values()), given


def test_graphs_set_known_parameters() -> None:
    for process in (process for graph in GRAPHS.values() for process in graph.processes):
        if isinstance(process, NodeSpec):
            assert {name for name, _ in process.parameters} <= names(process.name), process.name


@pytest.mark.parametrize("part", {part.struct: part for parts in PARTS.values() for part in parts}.values(), ids=str)
def test_every_parameter_is_described_and_read_only(part: Parameters[msgspec.Struct], node: Node) -> None:
    got = settings(node, part)
    assert isinstance(got, part.struct)
    for name, field in part.fields().items():
        described = node.describe_parameter(name)
        assert described.read_only
        assert described.description == field.description
        if field.kind in (int, float):
            assert field.least is not None and field.most is not None, f"{name} has no limits"
            (limits,) = described.floating_point_range or described.integer_range
            assert (limits.from_value, limits.to_value) == (field.least, field.most)
        assert all(choice in described.additional_constraints for choice in field.choices)
    assert all(field.description for field in part.fields().values())


def test_wrong_values_are_refused_by_name(node: Node) -> None:
    values = {name: field.default for name, field in NAVIGATOR.fields().items()}
    with pytest.raises(ValueError, match="parameter guide is 'often'; choose auto, always, never"):
        NAVIGATOR.settings(values | {"guide": "often"})
    with pytest.raises(ValueError, match="stale_s 9 is outside"):
        NAVIGATOR.settings(values | {"stale_frame_s": 9})
    settings(node, LIMITS)
    refused = node.set_parameters([Parameter("max_turn_speed", value=0.5)])[0]
    assert not refused.successful, "read once at start"
    again = Node("again", parameter_overrides=[Parameter("max_turn_speed", value=1.5)])
    with pytest.raises(InvalidParameterValueException):
        settings(again, LIMITS)
    again.destroy_node()
