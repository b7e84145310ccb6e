"""The one style of all plots: a colour for every mode, axes, sizes, and where a plot is kept."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from edge_drafter import Mode
from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.options import add_save

matplotlib.use("Agg")
from matplotlib.figure import Figure

from speculation.settings import path_flag

KEPT = PROJECT / "docs" / "benchmarks"
OUT = PROJECT / "out" / "benchmarks"
DPI = 100
WIDTH = 9.0
"""Inches: with `DPI` the width of a README."""
MODE_COLOURS = {mode.value: "#17becf" for mode in Mode} | {
    "cloud": "#4c78a8", "edge": "#9d9d9d", "sd": "#f58518", "fsd": "#54a24b", "server_sd": "#b279a2",
    "proactive": "#eeca3b", "pipelined": "#72b7b2", "full": "#e45756",
}  # fmt: skip
PAPER = "#222222"
"""Values printed in a paper: black diamonds, never a line."""


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of `width` x `height` inches that lays itself out."""
    return Figure(figsize=(width, height), layout="constrained")


def stacked_bars(
    axes: Any, places: Any, parts: Mapping[str, tuple[Any, Sequence[float]]], size: float = 0.65, upright: bool = False
) -> list[Any]:
    """Add a bar at each of `places`, made of parts; return the bars of every part.

    parts: the name in the legend, a colour, and a value for each bar. upright: bars stand, else they lie.
    """
    add = axes.bar if upright else axes.barh
    ends = np.zeros(len(places))
    made = []
    for name, (colour, values) in parts.items():
        made.append(add(places, values, size, ends, color=colour, label=name))
        ends = ends + np.asarray(values, dtype=float)
    return made


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
    axes.set_title(title, fontsize=11)
    plain(axes, "x")
    return figure, axes
