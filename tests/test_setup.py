"""What scripts/setup.sh takes for the ROS of a shell, seen in how it refuses a virtual environment of another kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = "{}.{}".format(*sys.version_info)
WHEELS, SOURCED = f"Python {VERSION} and ROS from wheels", f"Python {VERSION} and a sourced ROS"


class Checkout:
    """A checkout in which nothing is built, and whose virtual environment has no pip to install anything with."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        for name in ("scripts/setup.sh", "pyproject.toml", "constraints"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (root / name).parent.mkdir(exist_ok=True)
            copy(ROOT / name, root / name)
        for name in ("ros_ws/src", "launch", "bin"):
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

    def refusal(self, first_on_path: Path, **environment: str) -> str:
        """Return what set-up says when it ends at once."""
        path = f"{first_on_path}:{os.environ['PATH']}"
        python = str(self.root / "bin" / "python3")
        # Where nothing is refused, nothing is installed either.
        clean = {"PATH": path, "HOME": str(self.root), "PYTHON": python, "PIP_NO_INDEX": "1", **environment}
        command = [str(self.root / "scripts" / "setup.sh")]
        got = subprocess.run(command, env=clean, text=True, capture_output=True, timeout=60)
        assert got.returncode == 1
        return got.stderr.splitlines()[-1]


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
    said = checkout.refusal(checkout.root / "bin")
    assert f".venv was made for {SOURCED}, and this shell has {WHEELS}" in said


def test_the_wheels_in_the_virtual_environment_are_no_sourced_ros(checkout: Checkout) -> None:
    checkout.environment("--system-site-packages")
    checkout.ros(checkout.venv / "lib" / f"python{VERSION}" / "site-packages")
    said = checkout.refusal(checkout.venv / "bin", ROS_DISTRO="jazzy")
    assert f"this shell has {WHEELS}" in said


def test_libraries_of_another_python_are_refused(checkout: Checkout) -> None:
    checkout.environment()
    (checkout.venv / "bin" / "python").unlink()
    stub = checkout.venv / "bin" / "python"
    stub.write_text("#!/bin/sh\necho 3.8\n", encoding="utf-8")
    stub.chmod(0o755)
    said = checkout.refusal(checkout.root / "bin")
    assert f".venv was made for Python 3.8 and ROS from wheels, and this shell has {WHEELS}" in said
