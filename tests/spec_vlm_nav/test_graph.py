"""The process graph, as the runner and as launch files read it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from edge_drafter import Mode
from simulation.layouts import Layout
from simulation.scene import Difficulty
from spec_vlm_nav.graph import (
    GRAPHS,
    REPLAY_GRAPH,
    SIM_GRAPH,
    VERIFIER_GRAPH,
    Argument,
    CommandSpec,
    Graph,
    NodeSpec,
    Use,
)
from spec_vlm_nav.runner import SOURCE, arguments_of
from spec_vlm_nav.simulated_go2 import RoomSettings
from speculation.settings import fields_of


def named(graph: Graph, name: str) -> NodeSpec | CommandSpec:
    return next(process for process in graph.processes if process.name == name)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_has_a_file_a_script_and_its_parameter_file(name: str) -> None:
    scripts = (SOURCE / "setup.py").read_text()
    for process in GRAPHS[name].processes:
        if isinstance(process, NodeSpec):
            module = process.module or f"spec_vlm_nav.nodes.{process.executable}"
            assert find_spec(module) is not None
            assert f'"{process.executable}"' in scripts
            config = yaml.safe_load((SOURCE / "config" / process.config).read_text())
            assert f"/**/{process.name}" in config


@pytest.mark.parametrize("name", GRAPHS)
def test_every_argument_is_described_and_its_default_is_a_choice(name: str) -> None:
    for argument in GRAPHS[name].arguments:
        assert argument.description
        assert not argument.choices or argument.default in argument.choices
        if argument.kind is bool:
            assert (argument.default, argument.choices) == ("false", ("true", "false"))
        else:
            assert str(argument.kind(argument.default)) == argument.default


def test_a_link_is_emulated_where_it_is_named() -> None:
    assert "link:='lte'" in arguments_of(GRAPHS["go2"], named(GRAPHS["go2"], "vlm_nav"), {"link": "lte"})


def test_an_undeclared_argument_is_a_mistake_of_the_graph() -> None:
    with pytest.raises(ValueError, match="'seed', which the graph does not declare"):
        Graph((), (NodeSpec("sim_go2", "sim.yaml", (("seed", Use("seed")),)),))


def test_arguments_reach_the_command_lines() -> None:
    words = arguments_of(SIM_GRAPH, named(SIM_GRAPH, "sim_go2"), {"seed": "7", "target": "it's 1e3"})
    assert words[:3] == [sys.executable, "-m", "spec_vlm_nav.nodes.sim_go2"]
    assert "seed:=7" in words
    assert yaml.safe_load(words[words.index("difficulty:='middle'")].split(":=")[1]) == "middle"
    text = next(word for word in words if word.startswith("target:="))
    assert yaml.safe_load(text.split(":=", 1)[1]) == "it's 1e3"
    remapped = arguments_of(GRAPHS["go2"], named(GRAPHS["go2"], "go2_bridge"), {"odom_topic": "/odometry"})
    assert remapped[-2:] == ["-r", "odom:=/odometry"]


def test_empty_values_take_their_flag_with_them() -> None:
    plain = arguments_of(VERIFIER_GRAPH, named(VERIFIER_GRAPH, "verifier"), {"target_model": "m"})
    assert plain[:7] == ["python3", "-m", "cloud_verifier", "serve", "--model", "m", "--bind"]
    assert "--keys" not in plain
    locked = arguments_of(VERIFIER_GRAPH, named(VERIFIER_GRAPH, "verifier"), {"keys": "secret"})
    assert locked[locked.index("--keys") + 1] == "secret"


def test_wrong_arguments_are_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="unknown argument 'sed'; known are seed, difficulty"):
        SIM_GRAPH.values({"sed": "1"})
    with pytest.raises(ValueError, match="mode:=fast is none of cloud, edge, sd, fsd"):
        SIM_GRAPH.values({"mode": "fast"})


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


def test_a_flag_of_the_verifier_stands_alone_or_takes_true_or_false(capsys: pytest.CaptureFixture[str]) -> None:
    from cloud_verifier.__main__ import parser

    command = ["serve", "--model", "m"]
    assert parser().parse_args([*command, "--allow-plain", "--seed", "1"]).allow_plain is True
    assert parser().parse_args(command).allow_plain is False
    with pytest.raises(SystemExit):
        parser().parse_args([*command, "--allow-plain", "perhaps"])
    assert "'perhaps' is neither true nor false" in capsys.readouterr().err


def test_nothing_in_a_replay_can_move_a_robot() -> None:
    nodes = {process.name for process in REPLAY_GRAPH.processes if isinstance(process, NodeSpec)}
    assert nodes == {"vlm_nav", "bag_player"}


def test_arguments_keep_their_types() -> None:
    node = NodeSpec("x", "sim.yaml", (("n", Use("n")), ("b", True)))
    graph = Graph((Argument("n", "1", "a number", kind=int),), (node,))
    words = arguments_of(graph, node, {"n": "4"})
    assert words[-4:] == ["-p", "n:=4", "-p", "b:=true"]


def test_choices_are_the_members_of_their_tables() -> None:
    for graph in (SIM_GRAPH, GRAPHS["go2"], REPLAY_GRAPH):
        assert graph.argument("mode").choices == tuple(mode.value for mode in Mode)
    assert SIM_GRAPH.argument("difficulty").choices == tuple(each.name.lower() for each in Difficulty)
    assert SIM_GRAPH.argument("layout").choices == tuple(each.value for each in Layout)
    choices = {field.name: set(field.choices) for field in fields_of(RoomSettings)}
    assert choices["difficulty"] == set(SIM_GRAPH.argument("difficulty").choices)
