"""What is installed under which name, licence and version, and what the ROS package does for its nodes' Python."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.robots import ROBOTS
from speculation.vlm.load import TESTED_TRANSFORMERS
from tests.test_dependencies import FOLDERS, ROS, imports

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ros_ws" / "src" / "spec_vlm_nav"
PYTHON = "python{}.{}".format(*sys.version_info)
SHIPPED = {name: folder for name, folder in FOLDERS.items() if name != "benchmarks"}
VENDORS = ("unitree_api", "unitree_go")
PACKAGE_FILES = sorted((ROOT / "ros_ws" / "src").glob("*/package.xml"))
BASE = {
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "safetensors",
    "PIL",
    "numpy",
    "yaml",
    "jinja2",
    "msgspec",
    "zmq",
    "cv2",
    "huggingface_hub",
    "outlines_core",
    "prometheus_client",
}
"""What the required packages are imported as; huggingface_hub comes with transformers."""
ROBOT = [f"spec_vlm_nav.nodes.{name}" for name in ("vlm_nav", "action_executor", "go2_bridge")]
PIP_ONLY = {"torch", "transformers", "tokenizers", "safetensors", "msgspec", "outlines_core", "av", "gi"}
"""What nodes import that rosdep has no key for, or none that is new enough; `make setup` installs it."""
OPTIONAL = {"torchao", "rich", "ray", "llama_cpp", "triton", "aiohttp"}
"""Imported where a setting asks for them, with a sentence where they are missing."""


def metadata(project: Path, setup: list[str], out: Path) -> Path:
    """Write the metadata of a project, as its build does, and return the folder in which Python finds it."""
    out.mkdir(parents=True)
    command = [sys.executable, *setup, "-q", "egg_info", "--egg-base", str(out)]
    subprocess.run(command, cwd=project, check=True, timeout=60, capture_output=True)
    return out


def test_project_and_ros_package_are_found_each_by_its_name_in_either_order(tmp_path: Path) -> None:
    core = metadata(ROOT, ["-c", "import setuptools; setuptools.setup()"], tmp_path / "core")
    ros = metadata(PACKAGE, ["setup.py"], tmp_path / "ros")
    for path in ([str(core), str(ros)], [str(ros), str(core)]):
        (package,) = distributions(name="spec_vlm_nav", path=path)
        (project,) = distributions(name="spec-vlm-nav-core", path=path)
        assert "vlm_nav" in {entry.name for entry in package.entry_points}
        assert any(line.startswith("msgspec") for line in project.requires or ())


def declared(pattern: str, name: str) -> str:
    found = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{name} has no {pattern}"
    return found[1]


def test_there_is_one_version() -> None:
    version = declared(r'^version = "(.+)"$', "pyproject.toml")
    assert declared(r"^version: (.+)$", "CITATION.cff") == version
    # what is not released yet stands above it
    assert declared(r"^## (\d\S+)", "CHANGELOG.md") == version
    assert declared(r'^    version="(.+)",$', "ros_ws/src/spec_vlm_nav/setup.py") == version
    assert len(PACKAGE_FILES) == 5
    for path in PACKAGE_FILES:
        assert ElementTree.parse(path).findtext("version") == version, path


def test_there_is_one_licence_but_for_the_vendors_messages() -> None:
    licence = declared(r'^license = "(.+)"$', "pyproject.toml")
    assert licence == "Apache-2.0"
    assert declared(r"^license: (.+)$", "CITATION.cff") == licence
    card = (ROOT / "models" / "README.md").read_text(encoding="utf-8").split("---")
    assert yaml.safe_load(card[1])["license"] == licence.lower()
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and len(text.splitlines()) > 200
    licences = {path.parent.name: ElementTree.parse(path).findtext("license") for path in PACKAGE_FILES}
    ours = dict.fromkeys(("spec_vlm_nav", "spec_vlm_nav_interfaces", "tf2_msgs"), licence)
    assert licences == {**ours, **dict.fromkeys(VENDORS, "BSD-3-Clause")}
    for package in VENDORS:
        vendors = (ROOT / "ros_ws" / "src" / package / "LICENSE").read_text(encoding="utf-8")
        assert vendors.startswith("Copyright") and "Redistribution and use in source and binary forms" in vendors
        assert f"ros_ws/src/{package}" in (ROOT / "NOTICE").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Build the wheel from a copy, since building leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("wheel")
    names = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "config", "ros_ws/src")
    for name in (*names, *(str(folder) for folder in SHIPPED.values() if folder.parts[0] != "ros_ws")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    out = copy / "dist"
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(copy),
    ]
    done = subprocess.run(command, cwd=copy, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_has_every_file_of_every_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    files = {
        (Path(package) / path.relative_to(ROOT / folder)).as_posix()
        for package, folder in SHIPPED.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    found = set(wheel.namelist())
    assert {name for name in found if name.endswith(".py")} == files
    assert {f"{package}/py.typed" for package in SHIPPED} <= found
    assert {name.split("/")[0] for name in found if ".dist-info" not in name} == set(SHIPPED)


def test_the_wheel_has_the_data_that_its_code_reads(wheel: zipfile.ZipFile) -> None:
    found = set(wheel.namelist())
    for package, source in {
        "speculation/config": ROOT / "config",
        "spec_vlm_nav/config": PACKAGE / "config",
        "vlm_nav_evaluation/interfaces/spec_vlm_nav_interfaces": ROOT / "ros_ws/src/spec_vlm_nav_interfaces/msg",
        **{f"vlm_nav_evaluation/interfaces/{name}": ROOT / "ros_ws/src" / name / "msg" for name in VENDORS},
    }.items():
        wanted = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
        assert wanted and {f"{package}/{name}" for name in wanted} <= found
    assert {"vlm_nav_evaluation/page.html", "vlm_nav_evaluation/experiment/data/prompts.jsonl"} <= found


def header(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_names_its_licence_and_carries_the_texts(wheel: zipfile.ZipFile) -> None:
    assert header(wheel)["License-Expression"] == "Apache-2.0"
    found = {name.split("/licenses/")[1] for name in wheel.namelist() if "/licenses/" in name}
    assert found == {"LICENSE", "NOTICE", *(f"ros_ws/src/{package}/LICENSE" for package in VENDORS)}


def test_console_scripts_of_the_wheel_are_functions(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    scripts = dict(line.split(" = ") for line in wheel.read(name).decode().splitlines() if " = " in line)
    assert {"spec-vlm-nav-verifier", "spec-vlm-nav-replay", "spec-vlm-nav-train"} <= set(scripts)
    for place in scripts.values():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(module), function)), place


def path_of(module: str) -> Path | None:
    package, _, rest = module.partition(".")
    if package not in FOLDERS:
        return None
    path = ROOT / FOLDERS[package] / rest.replace(".", "/")
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


def reached(module: str) -> tuple[set[Path], set[str]]:
    """Return the files of ours and the packages of others that a module imports, anywhere in it or what it imports."""
    waiting, seen, paths, found = [module], set[str](), set[Path](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting.extend(name.rsplit(".", 1)[:1] if "." in name else ())
        path = path_of(name)
        if path is not None:
            paths.add(path)
            waiting.extend(imports(path))
        elif name.split(".")[0] not in FOLDERS:
            found.add(name.split(".")[0])
    return paths, found - set(sys.stdlib_module_names) - {"__future__"}


@pytest.mark.parametrize("module", ["cloud_verifier.__main__", *ROBOT])
def test_robot_and_verifier_need_the_required_packages_only(module: str) -> None:
    assert path_of(module), f"{module} is gone"
    assert not reached(module)[1] - BASE - OPTIONAL - ROS
    assert "torch" in reached("cloud_verifier.__main__")[1]


def test_extras_name_what_the_rest_imports(wheel: zipfile.ZipFile) -> None:
    required = " ".join(header(wheel).get_all("Requires-Dist") or ())
    for package in ("mujoco", "rosbags", "tensorboard", "scikit-learn", "greenlet", "pyarrow"):
        assert re.search(rf"{package}[^ ]*; extra ==", required), package
    assert 'spec-vlm-nav-core[train]; extra == "evaluation"' in required, "which imports what training needs"


def depends(kind: str) -> set[str]:
    return {each.text or "" for each in ElementTree.parse(PACKAGE / "package.xml").findall(kind)}


def test_every_package_that_the_nodes_import_is_a_dependency_of_the_ros_package() -> None:
    """What is neither Python's, nor ours, nor a library of pip's must come from ROS, under its own name."""
    keys = {"aiohttp": "python3-aiohttp", "cv2": "python3-opencv", "numpy": "python3-numpy", "zmq": "python3-zmq"}
    keys |= {"PIL": "python3-pil", "yaml": "python3-yaml"}
    files = [*(PACKAGE / "spec_vlm_nav").rglob("*.py"), *(ROOT / "launch").glob("*.py")]
    files += (ROOT / "vlm_nav_evaluation" / "nodes").glob("bag_player.py")
    wanted = {name.split(".")[0] for path in files for name in imports(path)}
    wanted -= set(sys.stdlib_module_names) | set(FOLDERS) | {"__future__"} | PIP_ONLY
    assert {"rclpy", "launch", "aiohttp"} <= wanted
    assert not {keys.get(name, name) for name in wanted} - depends("exec_depend")
    topics = {topic.kind.split("/")[0] for robot in ROBOTS.values() for topic in robot.topics}
    assert topics and not topics - depends("exec_depend")


COLLECT = """
import sys, pytest
class Names:
    def pytest_pycollect_makemodule(self, module_path, parent):
        return None if module_path.name == "test_graph.py" else Unread.from_parent(parent, path=module_path)
class Unread(pytest.Module):
    def collect(self):
        print(self.path.name + ": unread")
        return []
sys.exit(pytest.main(["--collect-only", "-qqs", "-p", "no:cacheprovider"], plugins=[Names()]))
"""
"""Names the files that pytest finds in a folder by its own settings, and reads one of them: all take ten seconds."""


def test_colcon_test_runs_the_tests_of_the_ros_package() -> None:
    assert "python3-pytest" in depends("test_depend")
    got = subprocess.run([sys.executable, "-c", COLLECT], cwd=PACKAGE, text=True, capture_output=True, timeout=120)
    assert got.returncode == 0, got.stdout
    wanted = {path.name for path in (ROOT / "tests" / "spec_vlm_nav").rglob("test_*.py")}
    assert wanted and set(re.findall(r"(\w+\.py): (?:unread|[1-9])", got.stdout)) == wanted


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a project's folder with a blank in its name, linked into another workspace, and its environment hook."""
    project = tmp_path_factory.mktemp("a project")
    source = project / "ros_ws" / "src" / "spec_vlm_nav"
    source.mkdir(parents=True)
    for name in ("setup.py", "setup.cfg", "hook"):
        (source / name).symlink_to(PACKAGE / name)
    # a copy, since setup.py follows links to find its project
    (source / "setup.py").unlink()
    (source / "setup.py").write_bytes((PACKAGE / "setup.py").read_bytes())
    linked = tmp_path_factory.mktemp("workspace") / "spec_vlm_nav"
    linked.symlink_to(source)
    out = metadata(linked, ["setup.py"], linked.parent / "build")
    return project, out / "spec_vlm_nav.egg-info" / "python_path.sh"


def source(hook: Path, before: str | None) -> subprocess.CompletedProcess[str]:
    """Source a hook twice in a shell that knows nothing else, and print what PYTHONPATH is then."""
    environment = {"PATH": "/usr/bin:/bin"} | ({} if before is None else {"PYTHONPATH": before})
    script = 'set -eu; . "$1"; . "$1"; printf %s "$PYTHONPATH"'
    command = ["sh", "-c", script, "sh", str(hook)]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True, timeout=120)


@pytest.fixture(scope="module")
def fitting(built: tuple[Path, Path]) -> list[str]:
    """Give the project libraries for this Python, and return what its hook appends."""
    libraries = built[0] / ".venv" / "lib" / PYTHON / "site-packages"
    libraries.mkdir(parents=True, exist_ok=True)
    return [str(built[0]), str(libraries)]


@settings(max_examples=25)
@given(before=st.lists(st.text("ab/. -", min_size=1, max_size=8), max_size=4), colon=st.booleans())
def test_project_and_libraries_are_appended_once_and_nothing_else_changes(
    built: tuple[Path, Path], fitting: list[str], before: list[str], colon: bool
) -> None:
    got = source(built[1], ":".join(before) + ":" * colon)
    assert got.stdout.split(":") == [*before, *fitting]
    assert not got.stderr


def test_what_is_on_the_path_already_stays_where_it_is(built: tuple[Path, Path], fitting: list[str]) -> None:
    project, libraries = fitting
    assert source(built[1], None).stdout == f"{project}:{libraries}"
    assert source(built[1], f"{libraries}:/x").stdout == f"{libraries}:/x:{project}"


def test_libraries_of_another_python_are_left_out_and_named(built: tuple[Path, Path]) -> None:
    project, hook = built
    own = project / ".venv" / "lib" / PYTHON
    other = own.with_name("python2.7")
    own.joinpath("site-packages").mkdir(parents=True, exist_ok=True)
    own.rename(other)
    try:
        got = source(hook, "/x")
    finally:
        other.rename(own)
    assert got.stdout == f"/x:{project}"
    words = f"Python {PYTHON.removeprefix('python')}, for which {project}/.venv has no libraries"
    assert words in got.stderr and "make setup" in got.stderr


def test_a_python_without_the_project_says_what_to_source(tmp_path: Path) -> None:
    # -S: without the libraries of the virtual environment
    command = [sys.executable, "-S", "-c", "import spec_vlm_nav.graph"]
    environment = {"PYTHONPATH": str(PACKAGE)}
    got = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120)
    sentence = got.stderr.splitlines()[-1]
    assert sentence.startswith("ImportError: spec_vlm_nav needs speculation and msgspec, which ")
    assert sys.executable in sentence
    assert "make setup" in sentence and "source ros_ws/install/setup.bash" in sentence


def test_transformers_is_allowed_as_far_as_it_was_tested() -> None:
    first, last = (tuple(map(int, each.split("."))) for each in TESTED_TRANSFORMERS)
    required = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"transformers>={TESTED_TRANSFORMERS[0]},<{last[0]}.{last[1] + 1}",' in required
    pins = [line for path in (ROOT / "constraints").glob("py3*.txt") for line in path.read_text().splitlines()]
    for pin in (pin for pin in pins if pin.startswith("transformers==")):
        assert first <= tuple(map(int, pin.removeprefix("transformers==").split(".")))[:2] <= last
