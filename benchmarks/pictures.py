"""What benchmarks' pictures share: options, a colour for every mode, axes, and where a picture is kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.clocked.layer_split import LAYER_SPLIT
from benchmarks.setting import add_save
from evaluation.replay_plots import MODE_COLOURS
from spec_vlm_nav.graph import PROJECT

KEPT = PROJECT / "docs" / "benchmarks"
OUT = PROJECT / "out" / "benchmarks"
DPI = 100
WIDTH = 9.0
"""Inches: with `DPI` the width of a README."""
COLOURS = {**MODE_COLOURS, LAYER_SPLIT: "#9c755f"}
PAPER = "#222222"
"""What a paper printed: black diamonds, never a line."""


def add_outputs(line: argparse.ArgumentParser) -> None:
    """Register --quick, --save and --out; what is kept is no quick look."""
    either = line.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="few points and steps, for a look")
    add_save(either)
    line.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR",
        help="folder for pictures; with --save they go to docs/benchmarks instead (default: out/benchmarks)",
    )  # fmt: skip


def keep(figure: Figure, name: str, options: argparse.Namespace) -> Path:
    """Write NAME.png where --save and --out say, and say so. Raises OSError."""
    folder: Path = KEPT if options.save else options.out
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=DPI)
    print(f"drew {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")
    return path


def plain(axes: Any, grid: str = "y") -> None:
    """Take the frame's upper and right side away and draw a faint grid."""
    axes.grid(axis=grid, color="#e5e7eb")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
