"""Progress bars are for terminals."""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path

import pytest

from speculation.progress import progress

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "speculation", "edge_drafter", "cloud_verifier", "vlm_nav_simulation", "adapters_training", "vlm_nav_evaluation",
    "benchmarks", "ros_ws/src/spec_vlm_nav", "scripts", "tests/fuzz",
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    shown, hidden = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setattr(sys, "stderr", shown)
    assert list(progress(range(1000), unit="step", mininterval=0.0)) == list(range(1000))
    with progress(total=3, unit="step") as bar:
        bar.update(3)
    assert ("1000/1000" in shown.getvalue()) == terminal and (terminal or not shown.getvalue())
    monkeypatch.setattr(sys, "stderr", hidden)
    list(progress(range(3), hidden=True))
    assert not hidden.getvalue()


def test_no_other_place_makes_bars() -> None:
    for path in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        if path.name == "progress.py" and path.parent.name == "speculation":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("tqdm", "trange"), f"{path}:{node.lineno}: use speculation.progress"
