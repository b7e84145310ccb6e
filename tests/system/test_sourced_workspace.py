"""A ROS whose Python is not the virtual environment's, as under /opt/ros: sourcing the workspace must be enough."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from spec_vlm_nav.graph import PROJECT, SIM_GRAPH
from spec_vlm_nav.runner import SOURCE
from tests.spec_vlm_nav import fake_launch

colcon_core = pytest.importorskip("colcon_core", reason="the workspace is built with colcon; run scripts/setup.sh")
if sys.prefix == sys.base_prefix:
    pytest.skip("these tests run in no virtual environment, so ROS has no other Python", allow_module_level=True)

PYTHON = "python{}.{}".format(*sys.version_info)
LIBRARIES = PROJECT / ".venv" / "lib" / PYTHON / "site-packages"
ROS_MODULES = ("rclpy", "rpyutils", "ament_index_python", "rosidl_*", "*_msgs", "*_interfaces", "unitree_api")
LOAD = """
import importlib.util, sys
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
fake = load("fake_launch", sys.argv[1])
sys.modules.update(fake.modules(sys.argv[2]))
entities = load("sim_launch", sys.argv[2] + "/launch/sim.launch.py").generate_launch_description().entities
for entity in fake.start(entities):
    print(getattr(entity, "executable", ""))
"""


class Ros:
    """A folder like /opt/ros/jazzy: the ROS modules of this machine and nothing else, for the base interpreter."""

    def __init__(self, folder: Path) -> None:
        self.modules, self.bin = folder / "modules", folder / "bin"
        self.python = Path(sys.base_prefix) / "bin" / PYTHON
        self.modules.mkdir(parents=True)
        self.bin.mkdir()
        (self.bin / "python3").symlink_to(self.python)
        for known in ("rclpy", "spec_vlm_nav_interfaces", "unitree_api"):
            spec = find_spec(known)
            assert spec is not None and spec.origin is not None
            # .venv may be a link
            folder = Path(spec.origin).resolve().parents[1]
            # elsewhere than in the virtual environment, all of it is ROS's own
            for pattern in ROS_MODULES if Path(sys.prefix).resolve() in folder.parents else ("*",):
                for module in folder.glob(pattern):
                    link = self.modules / module.name
                    if not link.exists():
                        link.symlink_to(module)

    @property
    def environment(self) -> dict[str, str]:
        """What a shell has after sourcing this ROS, with the discovery of the tests."""
        kept = ("LD_LIBRARY_PATH", "AMENT_PREFIX_PATH", "ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "HOME")
        known = {name: os.environ[name] for name in kept if name in os.environ}
        return {**known, "PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONPATH": str(self.modules), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `more` are environment variables."""
        environment = {**self.environment, **more}
        return subprocess.run(command, env=environment, cwd="/", text=True, capture_output=True, timeout=300)


class Workspace:
    """This package built by a colcon that runs with the Python of a ROS, as Ubuntu's does; its setup files."""

    def __init__(self, ros: Ros, folder: Path) -> None:
        self.ros, self.install = ros, folder / "install"
        places = [f"--{kind}-base={folder / kind}" for kind in ("build", "install")]
        command = [str(ros.python), "-m", "colcon", f"--log-base={folder / 'log'}", "build", f"--base-paths={SOURCE}"]
        path = f"{ros.modules}:{LIBRARIES}:{Path(str(colcon_core.__file__)).parents[1]}"
        built = ros.run(*command, *places, "--symlink-install", AMENT_PREFIX_PATH="", PYTHONPATH=path)
        assert built.returncode == 0, built.stdout + built.stderr
        self.prefix = self.install / "spec_vlm_nav"

    def sourced(
        self, *command: str, script: str = "setup.bash", shell: str = "bash"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a shell that has sourced ROS and one of the setup files."""
        line = f'. "{self.install / script}" && exec "$@"'
        return self.ros.run(shell, "-c", line, shell, *command)


@pytest.fixture(scope="module")
def ros(tmp_path_factory: pytest.TempPathFactory) -> Ros:
    """Return a ROS whose Python does not have the project's libraries."""
    made = Ros(tmp_path_factory.mktemp("ros"))
    got = made.run("python3", "-c", "import rclpy.node")
    if got.returncode and "yaml" not in got.stderr:
        pytest.skip(f"rclpy does not load outside of the virtual environment: {got.stderr.splitlines()[-1]}")
    assert made.run("python3", "-c", "import msgspec").returncode, "this Python has the libraries of its own"
    return made


@pytest.fixture(scope="module")
def workspace(ros: Ros, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The package in a prefix of its own, linked to its source, as scripts/setup.sh builds it."""
    return Workspace(ros, tmp_path_factory.mktemp("linked"))


@pytest.mark.parametrize(("shell", "script"), [("bash", "setup.bash"), ("sh", "local_setup.sh")])
def test_sourcing_appends_project_and_libraries_after_ros(workspace: Workspace, shell: str, script: str) -> None:
    got = workspace.sourced("python3", "-c", "import os; print(os.environ['PYTHONPATH'])", script=script, shell=shell)
    path = got.stdout.strip().split(":")
    assert path[-3:] == [str(workspace.ros.modules), str(PROJECT), str(LIBRARIES)], got.stderr
    assert len(path) == len(set(path))


def test_nodes_launch_files_and_verifier_run_with_the_python_of_ros(workspace: Workspace) -> None:
    node = workspace.prefix / "lib" / "spec_vlm_nav" / "vlm_nav"
    assert node.read_text(encoding="utf-8").splitlines()[0] == f"#!{workspace.ros.python}"
    got = workspace.sourced(str(node), "--ros-args", "-p", "mode:=nonsense")
    assert (got.returncode, got.stderr.splitlines()[-1][:26]) == (2, "error: mode is 'nonsense';"), got.stderr
    share = workspace.prefix / "share" / "spec_vlm_nav"
    got = workspace.sourced("python3", "-c", LOAD, str(fake_launch.__file__), str(share))
    assert not got.returncode, got.stderr
    assert {process.name for process in SIM_GRAPH.processes} - {"verifier"} <= set(got.stdout.split())
    got = workspace.sourced("python3", "-m", "cloud_verifier", "serve", "--help")
    assert not got.returncode and "--bind" in got.stdout, got.stderr
