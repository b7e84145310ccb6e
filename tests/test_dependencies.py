"""Who may know whom, as docs/architecture.md says it, read from the import lines of every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAV = Path("ros_ws/src/spec_vlm_nav/spec_vlm_nav")
FOLDERS = {
    "speculation": Path("speculation"),
    "simulation": Path("simulation"),
    "cloud_verifier": Path("cloud_verifier"),
    "edge_drafter": Path("edge_drafter"),
    "adapters_training": Path("adapters_training"),
    "evaluation": Path("evaluation"),
    "benchmarks": Path("benchmarks"),
    "spec_vlm_nav": NAV,
}
BELOW = {"speculation", "simulation", "edge_drafter", "cloud_verifier", "adapters_training", "spec_vlm_nav"}
KNOWS: dict[str, set[str]] = {
    "speculation": set(),
    "simulation": {"speculation"},
    "cloud_verifier": {"speculation"},
    "edge_drafter": {"speculation"},
    "adapters_training": {"speculation", "simulation"},
    "spec_vlm_nav": {"speculation", "edge_drafter", "simulation"},
    "evaluation": BELOW,
    "benchmarks": BELOW | {"evaluation"},
}
NODES = (ROOT / NAV / "nodes", ROOT / "evaluation" / "nodes")
ROS = {
    "rclpy", "action_msgs", "builtin_interfaces", "geometry_msgs", "nav_msgs", "rcl_interfaces", "sensor_msgs",
    "std_msgs", "spec_vlm_nav_interfaces", "unitree_api",
}  # fmt: skip
ZMQ_FILES = {
    "cloud_verifier/mailbox.py", "cloud_verifier/security.py", "edge_drafter/link.py", "edge_drafter/link_socket.py",
}  # fmt: skip
POLICY = (
    "edge_drafter/",
    "speculation/acceptance.py", "speculation/sampling/", "speculation/wire.py", "speculation/prompts.py",
    "speculation/predictor.py", "speculation/cancellation.py",
    "cloud_verifier/scheduler.py", "cloud_verifier/ledger.py", "cloud_verifier/estimator.py", "cloud_verifier/step.py",
    "cloud_verifier/exit_queue.py", "cloud_verifier/server.py",
)  # fmt: skip
FACE = "edge_drafter/decoder.py"
"""Joins the edge's policy with the draft model, the one file of its package that knows torch."""


def sources(folder: Path) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the package"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def files() -> list[Path]:
    return [path for folder in FOLDERS.values() for path in sources(folder)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", FOLDERS)
def test_packages_know_only_whom_they_may(package: str) -> None:
    paths = sources(FOLDERS[package])
    assert paths, f"{package} has no files"
    ours = set(FOLDERS) | {"tests"}
    for path in paths:
        strangers = (tops(path) & ours) - KNOWS[package] - {package}
        assert not strangers, f"{name_of(path)} imports {strangers}"


def test_the_simulation_knows_nothing_of_speculation_but_prompts() -> None:
    for path in sources(FOLDERS["simulation"]):
        known = {name for name in imports(path) if name.startswith("speculation.")}
        assert all(name.startswith("speculation.prompts") for name in known), f"{name_of(path)} imports {known}"


def test_ros_is_imported_in_nodes_only() -> None:
    for path in files():
        if path.parent not in NODES:
            assert not tops(path) & ROS, f"{name_of(path)} imports {tops(path) & ROS}"


def test_launch_is_imported_by_launch_files_and_their_helper_only() -> None:
    for path in files():
        if path.name != "launching.py":
            assert not tops(path) & {"launch", "launch_ros"}, name_of(path)


def test_zmq_is_imported_at_the_sockets_only() -> None:
    for path in files():
        if name_of(path) not in ZMQ_FILES:
            assert "zmq" not in tops(path), name_of(path)


def test_transformers_is_imported_for_models_and_training_only() -> None:
    for path in files():
        if not name_of(path).startswith(("speculation/vlm/", "adapters_training/", "benchmarks/")):
            assert "transformers" not in tops(path), name_of(path)


def test_policy_needs_no_torch() -> None:
    policies = [path for path in files() if name_of(path).startswith(POLICY) and name_of(path) != FACE]
    assert len(policies) >= len(POLICY)
    for path in policies:
        assert not tops(path) & {"torch", "tokenizers"}, name_of(path)
        with_torch = ("speculation.vlm", "speculation.exits", "safetensors.torch")
        torch_files = {name for name in imports(path) if name.startswith(with_torch)}
        assert not torch_files, f"{name_of(path)} imports {torch_files}"


def test_the_robots_pure_modules_need_no_torch_to_stop_it() -> None:
    for name in ("safety", "go2_protocol", "motion", "odometry", "navigator", "messages"):
        assert not tops(ROOT / NAV / f"{name}.py") & (ROS | {"torch", "zmq"}), name


def test_no_file_is_longer_than_a_person_reads() -> None:
    for path in files():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 420, f"{name_of(path)} has {lines} lines"
