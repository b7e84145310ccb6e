"""The containers of deploy/: linted, and what the verifier's holds is enough for its command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_packaging import metadata, reached

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
FILES = sorted(DEPLOY.glob("Dockerfile.*"))


def words_of(path: Path, instruction: str) -> list[list[str]]:
    """Return the words of each such instruction, continued lines joined."""
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [line.split()[1:] for line in lines if line.startswith(f"{instruction} ")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_container_files_are_linted(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    got = subprocess.run([hadolint, "--no-color", str(path)], text=True, capture_output=True, timeout=60)
    assert got.returncode == 0 and not got.stdout, got.stdout


def test_the_verifiers_image_has_what_its_command_needs(tmp_path: Path) -> None:
    """Lay out what the image copies, make its metadata, and have the command that it starts with read there.

    What that imports later is looked up in the sources: importing all of it takes ten seconds.
    """
    file = DEPLOY / "Dockerfile.verifier"
    for *sources, target in words_of(file, "COPY"):
        for source in sources:
            assert (ROOT / source).exists(), source
            there = tmp_path / (target if target.strip("./") else "") / ("" if target == source else Path(source).name)
            there.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, there, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, there)
    metadata(tmp_path, ["-c", "import setuptools; setuptools.setup()"], tmp_path / "metadata")
    command = json.loads(" ".join(words_of(file, "CMD")[0]))
    script = f"from cloud_verifier import __main__ as main; main.parser().parse_args({command}); print(main.__file__)"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path.resolve())
    needed = {path.relative_to(ROOT) for path in reached("cloud_verifier.__main__")[0]}
    assert Path("cloud_verifier/engine.py") in needed and not [
        path for path in needed if not (tmp_path / path).exists()
    ]


def test_the_verifiers_image_installs_every_required_library() -> None:
    (install,) = (
        words for words in words_of(DEPLOY / "Dockerfile.verifier", "RUN") if "constraints/py311.txt" in words
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[<>=\[]", text)[0] for text in project["dependencies"]}
    assert required <= set(install)


def test_the_robots_image_installs_extras_that_exist_and_its_entry_point_is_shell() -> None:
    text = (DEPLOY / "Dockerfile.robot").read_text(encoding="utf-8")
    found = re.search(r"-e '\.\[([a-z,]+)\]'", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found and set(found[1].split(",")) <= set(project["optional-dependencies"])
    (entry,) = words_of(DEPLOY / "Dockerfile.robot", "ENTRYPOINT")
    script = DEPLOY / Path(json.loads(entry[0])[0]).name
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=120)
