"""What is installed under which name, and what the ROS package does for the Python that runs its nodes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ros_ws" / "src" / "spec_vlm_nav"
PYTHON = "python{}.{}".format(*sys.version_info)


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
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True, timeout=20)


@pytest.fixture(scope="module")
def fitting(built: tuple[Path, Path]) -> list[str]:
    """Give the project libraries for this Python, and return what its hook appends."""
    libraries = built[0] / ".venv" / "lib" / PYTHON / "site-packages"
    libraries.mkdir(parents=True, exist_ok=True)
    return [str(built[0]), str(libraries)]


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
    got = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=20)
    sentence = got.stderr.splitlines()[-1]
    assert sentence.startswith("ImportError: spec_vlm_nav needs speculation and msgspec, which ")
    assert sys.executable in sentence
    assert "make setup" in sentence and "source ros_ws/install/setup.bash" in sentence
