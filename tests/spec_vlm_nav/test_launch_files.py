"""The launch files as ROS 2 launch would load them, with small stand-ins for launch and launch_ros."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.security import make_keys
from spec_vlm_nav.graph import GRAPHS, PROJECT
from spec_vlm_nav.process_graph import NodeSpec
from spec_vlm_nav.runner import SOURCE
from tests.spec_vlm_nav import fake_launch as fake

NEEDED = {"replay": {"bag": str(PROJECT / "models" / "sample_bag"), "instruction": "find the red box"}}
"""Arguments without which a graph cannot start."""


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
    assert [entry.name for entry in declared] == [entry.name for entry in graph.arguments]
    assert all(entry.description for entry in declared)
    assert all(entry.default_value in entry.choices for entry in declared if entry.choices)
    assert entities[: len(declared)] == declared


@pytest.mark.parametrize("name", GRAPHS)
def test_every_process_of_the_graph_is_started_in_order(name: str, describe: Any) -> None:
    graph = GRAPHS[name]
    processes = graph.started(graph.values({}))
    for entity, process in zip(fake.start(describe(name), **NEEDED.get(name, {})), processes, strict=True):
        assert (entity.name, entity.respawn) == (process.name, process.respawns > 0)
        if isinstance(process, NodeSpec):
            assert (entity.package, entity.executable) == ("spec_vlm_nav", process.name)
            assert Path(entity.parameters[0]).exists()
            assert entity.parameters[1:] in ([], [graph.given(process, graph.values(NEEDED.get(name, {})))])
            assert entity.remappings == graph.remaps(process, graph.values({}))
        else:
            assert entity.cmd[:4] == [sys.executable, "-m", "cloud_verifier", "serve"], "another Python lacks libraries"


def test_arguments_reach_nodes_with_their_types(describe: Any, tmp_path: Path) -> None:
    make_keys(tmp_path)
    keys = str(tmp_path)
    made = {entity.name: entity for entity in fake.start(describe("sim"), seed="7", namespace="dog1", keys=keys)}
    assert made["sim_go2"].parameters[1]["seed"] == 7
    assert made["vlm_nav"].parameters[1]["keys"] == keys
    assert {entity.namespace for entity in made.values() if isinstance(entity, fake.Node)} == {"dog1"}
    assert made["verifier"].cmd[made["verifier"].cmd.index("--keys") + 1] == keys
    assert made["lifecycle_manager"].parameters[1]["node_names"] == ["vlm_nav", "go2_bridge", "action_executor"]


def test_a_slip_in_a_typed_name_is_refused_and_other_names_are_left_alone(
    describe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "spec_vlm_nav", "sim.launch.py", "verifiers:=x"])
    with pytest.raises(ValueError, match="unknown argument 'verifiers'; did you mean verifier?"):
        fake.start(describe("sim"), verifiers="tcp://10.0.0.5:5555")
    with pytest.raises(ValueError, match="argument verifier:=abc does not look like"):
        fake.start(describe("sim"), verifier="abc")
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "my_robot", "bringup.launch.py", "image_topic:=/image"])
    assert any(entity.msg.startswith("argument image_topic") for entity in fake.start(
        describe("go2"), image_topic="/image", model="x") if isinstance(entity, fake.LogInfo))  # fmt: skip
    (ignored,) = (entity for entity in fake.start(describe("sim"), world="x") if isinstance(entity, fake.LogInfo))
    assert ignored.msg == "argument world is unknown and ignored"


def test_a_dead_process_comes_back_three_times_and_then_ends_everything_with_a_failure(describe: Any) -> None:
    made = {entity.name: entity for entity in fake.start(describe("go2"))}
    context, died = fake.Context({}), fake.ProcessExited(-9)
    for _ in range(3):
        assert made["vlm_nav"].on_exit(died, context) is None
    with pytest.raises(RuntimeError, match="vlm_nav ended with status -9 after 3 new starts"):
        made["vlm_nav"].on_exit(died, context)
    with pytest.raises(RuntimeError, match="lifecycle_manager ended with status 3"):
        made["lifecycle_manager"].on_exit(fake.ProcessExited(3), context)
    assert made["go2_bridge"].on_exit(fake.ProcessExited(-2), fake.Context({}, is_shutdown=True)) is None
