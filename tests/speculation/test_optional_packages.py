"""What is missing is named with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from speculation.optional_packages import need
from speculation.program_exit import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


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


def test_every_package_of_the_project_is_its_own() -> None:
    files = [*ROOT.glob("*/__init__.py"), *ROOT.glob("ros_ws/src/*/*/__init__.py")]
    found = {file.parent.name for file in files} - {"scripts", "tests"}
    assert found <= set(PACKAGES), found - set(PACKAGES)
