"""What is missing is named with the extra that brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speculation.optional_packages import broken_package, need
from speculation.program_exit import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_there_is_not_complained_about() -> None:
    need("sim", "json", "sys")


def test_the_extra_and_only_what_is_missing_are_named() -> None:
    with pytest.raises(ImportError, match=r"^no_such_module not found: pip install 'spec-vlm-nav-core\[sim\]'$"):
        need("sim", "json", "no_such_module")


@pytest.mark.parametrize(("package", "extra"), [("vlm_nav_evaluation", "evaluation"), ("adapters_training", "train")])
def test_a_package_without_its_extra_names_it(package: str, extra: str) -> None:
    # -S: without the libraries of the virtual environment
    command = [sys.executable, "-S", "-c", f"import {package}"]
    environment = {"PYTHONPATH": str(ROOT)}
    got = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)
    sentence = got.stderr.splitlines()[-1]
    assert sentence.startswith("ImportError: ") and f"spec-vlm-nav-core[{extra}]" in sentence


def install_broken(folder: Path, package: str, error: str) -> None:
    """Put a package into `folder` that is installed, as far as its metadata says, and fails when it is imported."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(f"import {package}.inner\n", encoding="utf-8")
    (folder / package / "inner.py").write_text(f"raise {error}\n", encoding="utf-8")
    about = folder / f"{package}-0.21.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.21.0\n", encoding="utf-8")
    (about / "INSTALLER").write_text("pip\n", encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ("cloud_verifier", "serve", "--model", "models/target", "--bind", "tcp://127.0.0.1:*"),
        ("adapters_training", "exits", "--help"),
        ("spec_vlm_nav.nodes.vlm_nav",),
    ],
)
def test_a_torchvision_for_another_torch_is_a_sentence_in_every_program(words: tuple[str, ...], tmp_path: Path) -> None:
    install_broken(tmp_path, "torchvision", "RuntimeError('operator torchvision::nms does not exist')")
    path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    command, environment = [sys.executable, "-m", *words], {**os.environ, "PYTHONPATH": path}
    got = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    assert got.returncode in (1, 2) and len(got.stderr.splitlines()) == 1, got.stderr
    assert got.stderr.startswith(f"{words[0]}: ")
    assert (
        "torchvision 0.21.0 is installed but does not load (operator torchvision::nms does not exist); "
        "install the torchvision that goes with torch "
    ) in got.stderr
    assert "pip uninstall torchvision" in got.stderr


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import broken", "broken"),
        ("try:\n    import broken\nexcept ImportError as e:\n    raise RuntimeError('its importer') from e", "broken"),
        ("try:\n    import broken\nexcept ImportError:\n    raise ValueError('a sentence') from None", ""),
        ("import no_such_package_anywhere", ""),
        ("import json; json.loads('{')", ""),
    ],
)  # fmt: skip
def test_only_a_package_that_fails_in_its_import_is_blamed(
    source: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_broken(tmp_path, "broken", "ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Exception) as caught:
        exec(source, {"__name__": "__main__"})
    sentence = broken_package(caught.value, (*PACKAGES, "tests"))
    assert sentence.startswith("broken 0.21.0 is installed but does not load (libfoo.so.1: cannot open") == bool(
        package
    )
    assert bool(sentence) == bool(package)


def test_a_package_that_nobody_has_installed_is_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text("raise RuntimeError('mine')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError) as caught:
        exec("import of_mine", {"__name__": "__main__"})
    assert broken_package(caught.value, (*PACKAGES, "tests")) == ""


def test_every_package_of_the_project_is_its_own() -> None:
    files = [*ROOT.glob("*/__init__.py"), *ROOT.glob("ros_ws/src/*/*/__init__.py")]
    found = {file.parent.name for file in files} - {"scripts", "tests"}
    assert found <= set(PACKAGES), found - set(PACKAGES)
