"""The launch files as ROS 2 launch would load them, with small stand-ins for launch and launch_ros."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_vlm_nav.graph import (
    GRAPHS,
    PROJECT,
    CommandSpec,
    Graph,
    NodeSpec,
    Use,
)
from spec_vlm_nav.runner import SOURCE
from tests.spec_vlm_nav import fake_launch as fake


@pytest.fixture
def describe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load launch/<name>.launch.py and return its entities."""
    for name, module in fake.modules(str(SOURCE)).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "spec_vlm_nav.launching", raising=False)

    def load(name: str) -> list[Any]:
        path = PROJECT / "launch" / f"{name}.launch.py"
        spec = importlib.util.spec_from_file_location(f"{name}_launch", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        entities: list[Any] = module.generate_launch_description().entities
        return entities

    yield load
    sys.modules.pop("spec_vlm_nav.launching", None)


def kinds(entities: list[Any], kind: type) -> list[Any]:
    return [entity for entity in entities if isinstance(entity, kind)]


@pytest.mark.parametrize("name", GRAPHS)
def test_arguments_are_declared_before_use_and_described(name: str, describe: Any) -> None:
    entities, graph = describe(name), GRAPHS[name]
    declared = kinds(entities, fake.DeclareLaunchArgument)
    assert [entry.name for entry in declared[: len(graph.arguments)]] == [entry.name for entry in graph.arguments]
    assert {"namespace", "log_level"} <= {entry.name for entry in declared}
    assert all(entry.description for entry in declared)
    assert entities[: len(declared)] == declared


@pytest.mark.parametrize("name", GRAPHS)
def test_every_process_of_the_graph_is_started_in_order(name: str, describe: Any) -> None:
    entities, graph = describe(name), GRAPHS[name]
    started = [entity for entity in entities if not isinstance(entity, fake.DeclareLaunchArgument)]
    assert len(started) == len(graph.processes)
    for entity, process in zip(started, graph.processes, strict=True):
        if isinstance(process, NodeSpec):
            check_node(entity, process, graph)
        else:
            check_command(entity, process, graph)


def check_node(node: fake.Node, spec: NodeSpec, graph: Graph) -> None:
    assert (node.package, node.executable, node.name) == ("spec_vlm_nav", spec.executable, spec.name)
    config, given = node.parameters
    assert Path(config).exists()
    assert set(given) == {name for name, _ in spec.parameters}
    for name, stated in spec.parameters:
        value = given[name]
        if not isinstance(stated, Use):
            assert value == stated
            continue
        assert isinstance(value, fake.ParameterValue)
        assert value.value_type is graph.argument(value.value.variable_name).kind
    assert [name for name, _ in node.remappings] == [name for name, _ in spec.remaps]
    assert (node.on_exit is not None) == spec.essential


def check_command(entity: fake.OpaqueFunction, spec: CommandSpec, graph: Graph) -> None:
    (process,) = entity.function(graph.values({"keys": ""}), *entity.args)
    assert process.name == spec.name
    assert process.cmd[:3] == [sys.executable, "-m", "cloud_verifier"], "another Python may lack the libraries"
    assert "--keys" not in process.cmd and "--model" in process.cmd
    (locked,) = entity.function(graph.values({"keys": "folder"}), *entity.args)
    assert locked.cmd[locked.cmd.index("--keys") + 1] == "folder"
    assert (process.on_exit is not None) == spec.essential


def test_the_package_installs_the_launch_files_through_its_link() -> None:
    assert (SOURCE / "launch").is_symlink()
    assert sorted(path.name for path in (SOURCE / "launch").glob("*.launch.py")) == sorted(
        f"{name}.launch.py" for name in GRAPHS
    )
