"""What is installed under which name."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ros_ws" / "src" / "spec_vlm_nav"


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
