"""Parameters of the nodes: made from settings structs, described, limited, and the only ones that files name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from spec_vlm_nav.graph import EDGE, GRAPHS, PROJECT
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.web import WEB
from spec_vlm_nav.parameters import LIMITS, NAVIGATOR, Parameters
from spec_vlm_nav.preflight import PARTS as CHECKED
from spec_vlm_nav.process_graph import NodeSpec
from spec_vlm_nav.safety import Limits
from spec_vlm_nav.simulated_go2 import ROBOT, ROOM
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, ResponseOrder
from vlm_nav_evaluation.nodes.bag_player import PLAYER

CONFIG = PROJECT / "ros_ws" / "src" / "spec_vlm_nav" / "config"
PARTS = {**CHECKED, "sim_go2": (ROOM, ROBOT), "bag_player": (PLAYER,), "web": (WEB,)}
PUBLIC = {
    "vlm_nav": {
        "draft_model", "verifier", "mode", "profile", "link", "target_fingerprint", "keys", "allow_plain", "gamma",
        "drafting", "predictor", "fed_head", "sampling", "seed", "threads", "device", "dtype",
        "quantisation", "min_pixels", "max_pixels", "capacity", "max_tokens", "link_silence_s", "link_resume_s",
        "link_resume_elsewhere_s", "service_class", "answers",
        "response_order", "guide", "time_allowance_s", "step_limit_s", "action_limit_s", "stale_frame_s", "act_early",
        "look_ahead", "look_ahead_m", "look_ahead_deg", "degraded_s", "recover_s", "trace", "otlp", "welcome_s",
        "acceptance_margin", "acceptance_answers", "swap_every", "swap_tests", "swap_share",
    },
    "action_executor": {
        "forward_speed", "turn_speed", "tolerance_m", "tolerance_rad", "cap_factor", "cap_margin_s", "blocked_after_s",
        "watchdog_timeout", "require_bridge", "stamped_cmd_vel",
    },
    "go2_bridge": {
        "max_forward_speed", "max_sideways_speed", "max_turn_speed", "acceleration", "deceleration",
        "turn_acceleration", "turn_deceleration", "cmd_vel_timeout", "stand_up_s", "robot", "motion_service",
        "stamped_cmd_vel", "guard", "guard_timeout", "guard_x", "guard_y", "guard_z", "guard_roll", "guard_pitch",
        "guard_yaw", "guard_low", "guard_high", "guard_from", "guard_half_width", "stop_ahead", "slow_ahead",
        "slow_ratio", "stop_polygon", "slow_polygon", "guard_points",
    },
    "sim_go2": {"seed", "difficulty", "target", "layout", "image_size", "camera_hz", "odom_hz", "scan_hz"},
    "bag_player": {"bag", "instruction", "out", "camera_topic", "odom_topic", "rate", "start", "laps", "wait_s"},
    "nav_view": {"max_hz", "width", "broadcast_tf"},
    "go2_camera": {
        "source", "interface", "group", "port", "decoder", "gst_decode", "videohub_timeout_s", "fx", "fy", "cx", "cy",
        "k1", "k2", "p1", "p2", "k3", "source_width", "source_height", "fov_deg", "width", "height", "max_hz",
        "latency_s", "jpeg_quality", "reconnect_s", "base_frame", "link_frame", "frame_id", "mount_x", "mount_y",
        "mount_z", "mount_roll", "mount_pitch", "mount_yaw",
    },
    "lifecycle_manager": {
        "node_names", "heartbeats", "autostart", "bond_s", "startup_s", "recovery_s", "attempts",
    },
    "web": {"host", "port", "token"},
    "stop_watchdog": {"robot", "watchdog_timeout"},
}  # fmt: skip
"""What users' own parameter files may name: no parameter may be lost or renamed unnoticed."""


def names(node: str) -> set[str]:
    return {name for part in PARTS[node] for name in part.fields()}


@pytest.fixture
def node(ros: None) -> Iterator[Node]:
    made = Node("tried")
    yield made
    made.destroy_node()


@pytest.mark.parametrize("name", PARTS)
def test_no_parameter_is_lost_and_no_two_have_one_name(name: str) -> None:
    assert PUBLIC[name] <= names(name)
    assert sum(len(part.fields()) for part in PARTS[name]) == len(names(name))


def test_a_robot_asks_under_the_grammar_unless_told_otherwise(node: Node) -> None:
    assert settings(node, EDGE).decoding.answers == CONSTRAINED


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


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_graphs_set_known_parameters(graph: object) -> None:
    for process in graph.processes:  # type: ignore[attr-defined]
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


def test_parameters_become_the_struct_that_they_are_made_from(node: Node) -> None:
    got = settings(node, NAVIGATOR)
    assert got == NavigatorConfig() and node.get_parameter("stale_frame_s").value == got.stale_s
    values = {name: field.default for name, field in NAVIGATOR.fields().items()}
    changed = NAVIGATOR.settings(values | {"response_order": "action_first", "guide": "never", "stale_frame_s": 2.0})
    assert changed == NavigatorConfig(ResponseOrder.ACTION_FIRST, Guidance.NEVER, stale_s=2.0)


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


@pytest.mark.parametrize("gamma", [7.0, 2.5, True, "often", -1])
def test_a_draft_length_that_is_neither_is_refused(gamma: object, node: Node) -> None:
    other = Node("other", parameter_overrides=[Parameter("gamma", value=gamma)])
    with pytest.raises(ValueError, match="gamma is .*; give 0 to 64"):
        settings(other, EDGE)
    other.destroy_node()


@pytest.mark.parametrize("gamma", [6, "auto"])
def test_a_draft_length_is_a_number_or_a_rule(gamma: int | str, node: Node) -> None:
    other = Node("other", parameter_overrides=[Parameter("gamma", value=gamma)])
    assert settings(other, EDGE).decoding.gamma == gamma
    other.destroy_node()


def test_fields_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="Limits has no speed"):
        Parameters(Limits, {"speed": "max_speed"})
