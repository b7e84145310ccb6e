"""The one style of all plots: colours and markers, axes, sizes, and where a plot is kept.

Words can be read at half the width of a README. Colours are those of Okabe and Ito, which the colour-blind can tell
apart; on lines they have a marker each, on bars a name or a hatch, so that they can be told apart in black and white.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

from edge_drafter import Mode
from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.options import add_save

matplotlib.use("Agg")
from matplotlib.figure import Figure

from speculation.settings import path_flag

KEPT = PROJECT / "docs" / "benchmarks"
OUT = PROJECT / "out" / "benchmarks"
DPI = 150
WIDTH = 9.0
"""Inches; half of it is still to be read."""
matplotlib.rcParams.update({"font.size": 14, "axes.titlesize": 14, "legend.fontsize": 12, "hatch.linewidth": 0.8})
SMALL = 12
"""Size of the smallest words."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#999999", "#000000")
MARKERS, HATCHES = "osD^vPX*", ("", "//", "..", "xx", "\\\\", "oo", "--", "")
MODE_COLOURS = {mode.value: COLOURS[-1] for mode in Mode} | {
    "cloud": COLOURS[0], "edge": COLOURS[6], "sd": COLOURS[3], "fsd": COLOURS[2], "server_sd": COLOURS[4],
    "proactive": "#F0E442", "pipelined": COLOURS[5], "full": COLOURS[1],
}  # fmt: skip
MODE_MARKERS = {mode.value: MARKERS[number % len(MARKERS)] for number, mode in enumerate(Mode)}
PAPER = "#222222"
"""Values printed in a paper: black diamonds, never a line."""


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of `width` x `height` inches that lays itself out."""
    return Figure(figsize=(width, height), layout="constrained")


def add_outputs(line: argparse.ArgumentParser) -> None:
    """Register --quick, --save and --out; a quick look is never saved."""
    either = line.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="few points and steps, for a look")
    add_save(either)
    line.add_argument(
        "--out", type=path_flag, default=OUT, metavar="DIR",
        help="folder for plots; with --save they go to docs/benchmarks instead (default: out/benchmarks)",
    )  # fmt: skip


def keep(figure: Figure, name: str, options: argparse.Namespace) -> Path:
    """Write NAME.png into the folder of --save or --out and print its path. Raises OSError."""
    folder: Path = KEPT if options.save else options.out
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=DPI)
    print(f"plotted {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")
    return path


def plain(axes: Any, grid: str = "y") -> None:
    """Remove the upper and right spine and add a faint grid."""
    axes.grid(axis=grid, color="#e5e7eb")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def bar_plot(height: float, names: list[str], title: str, label: str) -> tuple[Figure, Any]:
    """Return a figure and its axes for horizontal bars, one row per name, the first on top; `label`: of the x axis."""
    figure = new_figure(height)
    axes = figure.add_subplot()
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title)
    plain(axes, "x")
    return figure, axes
