"""Which package may import which, as docs/architecture.md lists it, read from the import lines of every file.

Imports inside functions and under TYPE_CHECKING count like all others: an import that only runs late is no cure for a
circle.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]
NAV = Path("ros_ws/src/spec_vlm_nav/spec_vlm_nav")
FOLDERS = {
    "speculation": Path("speculation"),
    "vlm_nav_simulation": Path("vlm_nav_simulation"),
    "cloud_verifier": Path("cloud_verifier"),
    "edge_drafter": Path("edge_drafter"),
    "adapters_training": Path("adapters_training"),
    "vlm_nav_evaluation": Path("vlm_nav_evaluation"),
    "benchmarks": Path("benchmarks"),
    "spec_vlm_nav": NAV,
}
BELOW = {"speculation", "vlm_nav_simulation", "edge_drafter", "cloud_verifier", "adapters_training", "spec_vlm_nav"}
KNOWS: dict[str, set[str]] = {
    "speculation": set(),
    "vlm_nav_simulation": {"speculation"},
    "cloud_verifier": {"speculation"},
    "edge_drafter": {"speculation"},
    "adapters_training": {"speculation", "vlm_nav_simulation"},
    "spec_vlm_nav": {"speculation", "edge_drafter", "vlm_nav_simulation"},
    "vlm_nav_evaluation": BELOW,
    "benchmarks": BELOW | {"vlm_nav_evaluation"},
}
NODES = (ROOT / NAV / "nodes", ROOT / "vlm_nav_evaluation" / "nodes")
ROS = {
    "rclpy", "action_msgs", "builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "lifecycle_msgs", "nav_msgs",
    "nav2_msgs", "rcl_interfaces", "sensor_msgs", "std_msgs", "std_srvs", "spec_vlm_nav_interfaces", "tf2_msgs",
    "unique_identifier_msgs", "unitree_api", "unitree_go",
}  # fmt: skip
HOMES: dict[str, tuple[str, ...]] = {
    "zmq": (
        "cloud_verifier/frontend/router_socket.py", "cloud_verifier/frontend/curve.py",
        "cloud_verifier/frontend/supervisor.py", "cloud_verifier/security.py",
        "cloud_verifier/openai_api/verifier_sessions.py",
        "edge_drafter/link.py", "edge_drafter/link_socket.py",
    ),
    "ray": ("cloud_verifier/cluster/on_ray.py",),
    "llama_cpp": ("edge_drafter/llama_cpp.py",),
    "triton": ("speculation/vlm/kernels.py",),
    "rich": ("cloud_verifier/monitoring/",),
    "aiohttp": ("cloud_verifier/openai_api/", f"{NAV.as_posix()}/web"),
    "transformers": ("speculation/vlm/", "adapters_training/", "benchmarks/"),
}  # fmt: skip
"""Where what robot and verifier must do without, or have one way to, is imported."""
TORCH_HOMES = (
    "speculation/vlm/", "speculation/exits.py", "speculation/fed/", "edge_drafter/decoder.py",
    "edge_drafter/draft_models.py", "edge_drafter/llama_cpp.py",
    "cloud_verifier/engine.py", "cloud_verifier/server_draft/drafting.py", "cloud_verifier/serving.py",
    "cloud_verifier/openai_api/questions.py",
    "adapters_training/", "vlm_nav_evaluation/", "benchmarks/",
)  # fmt: skip
"""All other files hold policy, messages or the robot, which must start, stop and be tested without torch."""
NEEDS_TORCH = ("torch", "tokenizers", "safetensors.torch", "speculation.exits", "speculation.fed", "speculation.vlm")
NEEDS_NO_TORCH = {
    "speculation.fed.config", "speculation.vlm.settings", "speculation.vlm.folder", "speculation.vlm.blocks",
    "speculation.vlm.families",
    "speculation.vlm.gguf_file",
}  # fmt: skip
"""Files that describe models without loading one."""


def sources(folder: Path) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the package"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


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


HOW_MODELS_ARE_ASKED = (
    "speculation.language.prompts",
    "speculation.language.search_memory",
    "speculation.language.instructions",
)
HOW_PROGRAMS_END = "speculation.program_exit"


def test_the_simulation_knows_nothing_of_speculation_but_how_models_are_asked() -> None:
    for path in sources(FOLDERS["vlm_nav_simulation"]):
        known = {name for name in imports(path) if name.startswith("speculation.")}
        allowed = (*HOW_MODELS_ARE_ASKED, HOW_PROGRAMS_END, "speculation.progress")
        assert all(name.startswith(allowed) for name in known), f"{name_of(path)} imports {known}"


def test_ros_is_imported_in_nodes_only() -> None:
    for path in files():
        if path.parent not in NODES:
            assert not tops(path) & ROS, f"{name_of(path)} imports {tops(path) & ROS}"


def test_launch_is_imported_by_launch_files_and_their_helper_only() -> None:
    for path in files():
        if path.name != "launching.py":
            assert not tops(path) & {"launch", "launch_ros"}, name_of(path)


@pytest.mark.parametrize("package", HOMES)
def test_packages_of_others_are_imported_in_their_homes_only(package: str) -> None:
    for path in files():
        if not name_of(path).startswith(HOMES[package]):
            assert package not in tops(path), name_of(path)


def test_torch_is_imported_where_models_run_only() -> None:
    for path in files():
        if name_of(path).startswith(TORCH_HOMES):
            continue
        known = {name for name in imports(path) if name.startswith(NEEDS_TORCH)}
        known = {name for name in known if not any(name.startswith(free) for free in NEEDS_NO_TORCH)}
        assert not known - {"speculation.vlm"}, f"{name_of(path)} imports {known}"


def modules() -> dict[str, Path]:
    """Return every module of the project by its full name; a package is the module of its `__init__`."""
    found = {}
    for folder in FOLDERS.values():
        for path in sources(folder):
            name = ".".join(path.relative_to((ROOT / folder).parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def test_no_modules_import_each_other() -> None:
    known, graph = modules(), networkx.DiGraph()
    for name, path in known.items():
        graph.add_edges_from((name, other) for other in imports(path) & known.keys() if other != name)
    assert not [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]


@pytest.mark.parametrize("node", ["go2_bridge", "action_executor", "go2_camera"])
def test_the_nodes_that_stop_the_robot_load_no_torch(node: str) -> None:
    """Neither do the modules that they import, those that these import, and so on; packages load their `__init__`."""
    known = modules()
    reached, left = set[str](), {f"spec_vlm_nav.nodes.{node}"}
    while left:
        name = left.pop()
        reached.add(name)
        found = imports(known[name]) & known.keys()
        found |= {parent for each in found for parent in (each.rpartition(".")[0],) if parent in known}
        assert not tops(known[name]) & {"torch", "transformers", "zmq"}, f"{node} loads {name}"
        left |= found - reached
    assert "spec_vlm_nav.motion" in reached or "spec_vlm_nav.safety" in reached
