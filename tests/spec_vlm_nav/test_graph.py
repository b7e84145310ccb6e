"""The process graph, as the runner and as launch files read it."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from spec_vlm_nav.graph import GRAPHS, REPLAY_GRAPH, SIM_GRAPH, VERIFIER_GRAPH
from spec_vlm_nav.process_graph import CommandSpec, Graph, NodeSpec
from spec_vlm_nav.robots import robot_of
from spec_vlm_nav.runner import SOURCE, arguments_of


def named(graph: Graph, name: str) -> NodeSpec | CommandSpec:
    return next(process for process in graph.processes if process.name == name)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_has_a_script_and_parameters_and_every_argument_a_default_that_can_be_used(name: str) -> None:
    scripts = (SOURCE / "setup.py").read_text()
    for process in GRAPHS[name].processes:
        if isinstance(process, NodeSpec):
            assert find_spec(process.module or f"spec_vlm_nav.nodes.{process.name}") is not None
            assert f'"{process.name}"' in scripts
            assert f"/**/{process.name}" in yaml.safe_load((SOURCE / "config" / process.config).read_text())
    assert all(argument.description and not argument.problem(argument.default) for argument in GRAPHS[name].arguments)


def test_arguments_reach_the_command_lines() -> None:
    words = arguments_of(SIM_GRAPH, named(SIM_GRAPH, "sim_go2"), {"seed": "7", "target": 'it\'s "1e3"é'})
    assert words[:3] == [sys.executable, "-m", "spec_vlm_nav.nodes.sim_go2"]
    assert "seed:=7" in words
    assert yaml.safe_load(words[words.index('difficulty:="middle"')].split(":=")[1]) == "middle"
    text = next(word for word in words if word.startswith("target:="))
    assert yaml.safe_load(text.split(":=", 1)[1]) == 'it\'s "1e3"é'
    remapped = arguments_of(GRAPHS["go2"], named(GRAPHS["go2"], "go2_bridge"), {"odom_topic": "/odometry"})
    assert ["-r", "odom:=/odometry"] in [remapped[at : at + 2] for at in range(len(remapped))]


def test_the_verifier_is_started_as_its_command_line_wants_it() -> None:
    from cloud_verifier.__main__ import parser

    words = arguments_of(
        SIM_GRAPH, named(SIM_GRAPH, "verifier"), {"target_model": "m", "verifier": "tcp://127.0.0.1:1"}
    )
    options = parser().parse_args(words[3:])
    assert (options.model, options.bind, options.profile) == (Path("m"), "tcp://127.0.0.1:1", "raw")


@pytest.mark.parametrize("word", ["true", "false"])
def test_plain_text_is_allowed_on_both_sides_by_one_argument(word: str) -> None:
    from cloud_verifier.__main__ import parser

    for graph in GRAPHS.values():
        words = {process.name: arguments_of(graph, process, {"allow_plain": word}) for process in graph.processes}
        assert "vlm_nav" not in words or f"allow_plain:={word}" in words["vlm_nav"]
        assert "verifier" not in words or parser().parse_args(words["verifier"][3:]).allow_plain is (word == "true")


def test_nothing_in_a_replay_can_move_a_robot() -> None:
    nodes = {process.name for process in REPLAY_GRAPH.processes if isinstance(process, NodeSpec)}
    assert nodes == {"vlm_nav", "bag_player", "lifecycle_manager"}


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("sim", {"sed": "1"}, "unknown argument 'sed'; did you mean seed?"),
        ("sim", {"mode": "fast"}, "argument mode:=fast is none of cloud, edge, sd, fsd"),
        ("sim", {"seed": "abc"}, "argument seed:=abc is no whole number"),
        ("sim", {"seed": "-1"}, "argument seed:=-1 is outside its limits: -1 is outside 0 to"),
        ("sim", {"namespace": "dog 1"}, "argument namespace:=dog 1 does not look like dog1"),
        ("verifier", {"verifier": "10.0.0.5"}, "argument verifier:=10.0.0.5 does not look like tcp://127.0.0.1:5555"),
        ("replay", {"rate": "nan"}, "argument rate:=nan is outside its limits"),
        ("go2", {"motion_service": "dance"}, "argument motion_service:=dance is none of sport, obstacles_avoid"),
        ("go2", {"params_file": "/no/such.yaml"}, "argument params_file:=/no/such.yaml cannot be read"),
        ("verifier", {"verifier_config": "/etc/hostname"}, "argument verifier_config:=/etc/hostname holds no names"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(name: str, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        GRAPHS[name].values(given)


def test_the_robots_own_topics_are_absolute_unless_arguments_name_others() -> None:
    graph = GRAPHS["go2"]
    bridge = named(graph, "go2_bridge")
    own = dict(graph.remaps(bridge, graph.values({"namespace": "dog1"})))  # type: ignore[arg-type]
    for topic in robot_of("go2").topics:
        assert own[topic.name.lstrip("/")] == topic.name
        moved = graph.values({topic.argument: "/dog1/there"})
        assert dict(graph.remaps(bridge, moved))[topic.name.lstrip("/")] == "/dog1/there"  # type: ignore[arg-type]


PARAMETERS = """
/**/vlm_nav:
  ros__parameters: {mode: cloud, threads: 2}
go2_bridge:
  ros__parameters: {motion_service: sport}
"""


def test_a_parameter_file_counts_more_than_defaults_and_less_than_arguments(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PARAMETERS)
    graph = GRAPHS["go2"]
    words = arguments_of(graph, named(graph, "vlm_nav"), {"params_file": str(path)})
    assert words[words.index(str(path)) - 1] == "--params-file" and words.count("--params-file") == 2
    assert not [word for word in words if word.startswith("mode:=")]
    assert [word for word in words if word.startswith("profile:=")]
    words = arguments_of(graph, named(graph, "vlm_nav"), {"params_file": str(path), "mode": "sd"})
    assert 'mode:="sd"' in words


def test_a_settings_file_of_the_verifier_counts_more_than_defaults_and_less_than_arguments(tmp_path: Path) -> None:
    path = tmp_path / "verifier.yaml"
    path.write_text("model: there\ncapacity: 2048\n")
    spec = named(VERIFIER_GRAPH, "verifier")
    words = arguments_of(VERIFIER_GRAPH, spec, {"verifier_config": str(path), "max_batch": "3"})
    assert words[4:6] == ["--config", str(path)]
    assert "--model" not in words and "--capacity" not in words
    assert words[words.index("--max-batch") + 1] == "3"
    words = arguments_of(VERIFIER_GRAPH, spec, {"verifier_config": str(path), "target_model": "here"})
    assert words[words.index("--model") + 1] == "here"
