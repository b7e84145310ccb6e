"""In which folders and shells scripts/setup.sh works, and what it refuses in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = "{}.{}".format(*sys.version_info)
WHEELS, SOURCED = f"Python {VERSION} and ROS from wheels", f"Python {VERSION} and a sourced ROS"


class Checkout:
    """A checkout in which nothing is built, and whose virtual environment has no pip to install anything with."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        for name in ("scripts", "pyproject.toml", "constraints"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, root / name)
        for name in ("ros_ws/src", "ros_ws/test", "launch", "bin"):
            (root / name).mkdir(parents=True)
        (root / "bin" / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python{VERSION}")

    def environment(self, *options: str) -> None:
        """Make the virtual environment."""
        command = [str(self.root / "bin" / "python3"), "-m", "venv", "--without-pip", *options, str(self.venv)]
        subprocess.run(command, check=True, timeout=60)

    def ros(self, folder: Path) -> None:
        """Put something that imports as rclpy into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rclpy.py").touch()

    def run(
        self, *what: str, first_on_path: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run set-up; nothing can be installed."""
        path = f"{first_on_path or self.root / 'bin'}:{os.environ['PATH']}"
        python = str(self.root / "bin" / "python3")
        clean = {"PATH": path, "HOME": str(self.root), "PYTHON": python, "PIP_NO_INDEX": "1", **environment}
        command = [str(self.root / "scripts" / "setup.sh"), *what]
        return subprocess.run(command, env=clean, encoding="utf-8", capture_output=True, timeout=60)

    def refusal(self, first_on_path: Path, **environment: str) -> str:
        """Return what set-up says when it ends at once."""
        got = self.run(first_on_path=first_on_path, **environment)
        assert got.returncode == 1
        return got.stderr.splitlines()[-1]

    def sentence(self, **environment: str) -> str:
        """Return the one line with which set-up refuses this folder or shell before it does anything."""
        got = self.run("check", **environment)
        assert (got.returncode, len(got.stderr.splitlines())) == (1, 1), got.stdout + got.stderr
        return got.stderr.strip()

    def command(self, name: str, script: str) -> None:
        """Put a command ahead of the machine's own."""
        (self.root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (self.root / "bin" / name).chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a fresh checkout."""
    return Checkout(tmp_path)


def test_libraries_made_for_the_wheels_are_refused_where_a_ros_is_sourced(checkout: Checkout) -> None:
    checkout.environment()
    opt = checkout.root / "opt"
    checkout.ros(opt)
    said = checkout.refusal(checkout.root / "bin", ROS_DISTRO="jazzy", PYTHONPATH=str(opt))
    assert f".venv was made for {WHEELS}, and this shell has {SOURCED}" in said
    assert "make clean" in said


def test_libraries_made_for_a_sourced_ros_are_refused_where_none_is(checkout: Checkout) -> None:
    checkout.environment("--system-site-packages")
    assert f".venv was made for {SOURCED}, and this shell has {WHEELS}" in checkout.refusal(checkout.root / "bin")
    # wheels in the virtual environment are no sourced ROS
    checkout.ros(checkout.venv / "lib" / f"python{VERSION}" / "site-packages")
    assert f"this shell has {WHEELS}" in checkout.refusal(checkout.venv / "bin", ROS_DISTRO="jazzy")


def test_libraries_of_another_python_are_refused(checkout: Checkout) -> None:
    checkout.environment()
    (checkout.venv / "bin" / "python").unlink()
    stub = checkout.venv / "bin" / "python"
    stub.write_text("#!/bin/sh\necho 3.8\n", encoding="utf-8")
    stub.chmod(0o755)
    said = checkout.refusal(checkout.root / "bin")
    assert f".venv was made for Python 3.8 and ROS from wheels, and this shell has {WHEELS}" in said


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path, since set-up takes a long one for one that CMake cannot take."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


AWKWARD = ("röbot dog", "it's", '"$HOME"', "#1 100% [x]", "a;b back\\slash", "d" * 120)


@pytest.mark.parametrize("name", AWKWARD)
def test_in_any_folder_the_libraries_lie_in_a_plain_one(name: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / name)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LC_ALL": "C"}
    got = checkout.run("check", **cache)
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    (plain,) = (tmp_path / "cache" / "spec-vlm-nav").iterdir()
    assert checkout.run("clean", **cache).returncode == 0
    assert not plain.exists()


def test_set_up_makes_links_to_the_plain_folder(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "röbot dog")
    # ends where it has nothing to install from
    got = checkout.run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert got.returncode != 0
    (plain,) = (tmp_path / "cache" / "spec-vlm-nav").iterdir()
    assert checkout.venv.is_symlink() and checkout.venv.resolve() == plain / "venv"
    assert (plain / "venv" / "bin" / "pip").read_text(encoding="utf-8").startswith(f"#!{plain}/venv/bin/python")
    for name in ("build", "install", "log", "src"):
        ours, theirs = checkout.root / "ros_ws" / name, plain / "ros_ws" / name
        assert ours.resolve() == theirs.resolve() and (theirs if name == "src" else ours).is_symlink()
    assert str(plain) in got.stdout


def test_commands_of_a_folder_with_a_space_see_plain_paths_only(tmp_path: Path) -> None:
    pytest.importorskip("rclpy", reason="no ROS 2 here; run through scripts/with_env")
    checkout = Checkout(tmp_path / "röbot dog")
    checkout.venv.symlink_to(ROOT / ".venv")
    (checkout.root / "ros_ws" / "install").symlink_to(ROOT / "ros_ws" / "install")
    program = (
        "import os, rclpy, spec_vlm_nav_interfaces; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"
    )
    command = [str(checkout.root / "scripts" / "with_env"), "python", "-c", program]
    environment = {"PATH": os.environ["PATH"], "HOME": "/", "LC_ALL": "C"}
    got = subprocess.run(command, cwd="/", env=environment, encoding="utf-8", capture_output=True, timeout=60)
    assert got.returncode == 0, got.stderr
    assert [line for line in got.stdout.splitlines() if str(checkout.root) in line and not line.startswith("_=")] == []


def test_a_colon_is_named(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "a:b")
    assert "has a colon or a line break" in checkout.sentence()
    assert checkout.run("clean").returncode == 0


def test_a_cache_folder_that_is_not_plain_either_is_named(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "jörg")
    assert "set XDG_CACHE_HOME" in checkout.sentence()


def test_a_virtual_environment_that_never_worked_is_not_mixed_in(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "a b")
    checkout.environment()
    assert "run 'make clean' first" in checkout.refusal(checkout.root / "bin", XDG_CACHE_HOME=str(tmp_path / "cache"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_named(checkout: Checkout) -> None:
    checkout.root.chmod(0o555)
    assert f"may not write to this folder: {checkout.root}" in checkout.sentence()
    checkout.root.chmod(0o755)


def test_a_machine_without_ros_wheels_is_told_to_source_a_ros(checkout: Checkout) -> None:
    checkout.command("uname", "echo aarch64")
    assert "this machine is aarch64: nodes and the demo need an installed ROS 2" in checkout.sentence()


def test_a_python_without_wheels_is_not_taken(checkout: Checkout) -> None:
    for name in ("3.10", "3.11", "3.12", "3.13", "3.14", "3"):
        (checkout.root / "bin" / f"python{name}").unlink(missing_ok=True)
        checkout.command(f"python{name}", "exit 1")
    assert "no Python 3.10 to 3.14 found" in checkout.sentence()


def test_a_full_disk_is_named_with_what_is_needed(checkout: Checkout) -> None:
    checkout.command("df", "echo header; echo /dev/sda 9 9 1048576 50% /")
    assert "set-up needs " in (said := checkout.sentence()) and "there are 1 GiB free" in said


def test_packages_that_only_root_can_install_are_named_all_at_once(checkout: Checkout) -> None:
    checkout.command("id", "echo 1000")
    checkout.command("sudo", "exit 1")
    checkout.command("apt-get", "exit 1")
    checkout.command("ldconfig", "exit 0")
    said = checkout.run("check").stderr
    assert said.strip().endswith("run: sudo apt-get install --no-install-recommends libegl1 libgl1"), said


def test_the_python_of_an_active_conda_environment_is_not_used(checkout: Checkout) -> None:
    conda = checkout.root / "conda"
    (conda / "bin").mkdir(parents=True)
    for name in ("python3", "python3.11", "cmake"):
        (conda / "bin" / name).write_text(f"#!/bin/sh\ntouch {checkout.root}/used; exit 1\n", encoding="utf-8")
        (conda / "bin" / name).chmod(0o755)
    path = f"{conda}/bin:{checkout.root}/bin:{os.environ['PATH']}"
    got = checkout.run("check", PATH=path, CONDA_PREFIX=str(conda), PYTHON="python3")
    assert got.returncode == 0, got.stderr
    assert not (checkout.root / "used").exists()


def test_a_chromium_is_installed_or_the_sentence_says_what_is_skipped(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    system = checkout.root / "system"
    system.mkdir()
    for path in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        if not path.name.startswith(("chromium", "google-chrome")) and not (system / path.name).exists():
            (system / path.name).symlink_to(path)
    path = f"{checkout.root}/bin:{system}"
    asked = checkout.root / "asked"
    checkout.command("apt-get", f'echo "$@" >>"{asked}"; exit 1')
    checkout.command("id", "echo 0")
    for _ in range(2):
        got = checkout.run("browser", PATH=path)
        assert (got.returncode, got.stderr) == (0, "")
        assert got.stdout.splitlines()[-1].startswith("[setup] no Chromium, so the tests of the web page are skipped")
    assert asked.read_text(encoding="utf-8") == "-qq update\n", "tried once"
    (checkout.venv / ".chromium-tried").unlink()
    checkout.command("apt-get", f'echo "$@" >>"{asked}"')
    got = checkout.run("browser", PATH=path)
    assert got.returncode == 0 and "no Chromium" not in got.stdout
    assert asked.read_text(encoding="utf-8").endswith("install -y --no-install-recommends chromium\n")
    checkout.command("chromium", "")
    assert checkout.run("browser", PATH=path).stdout == ""
