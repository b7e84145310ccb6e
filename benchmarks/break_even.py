"""Where edge speculation pays, and by how much: a map over T_p / T_q and T_c / T_q, on virtual time.

    python -m benchmarks.break_even --save

At every place of the map the same answers are decoded by `cloud`, by plain `sd` and `fsd` (each at the best of
--gammas) and by --mode as it is shipped. Only the ratios of T_p, T_q and T_c count. `cloud` streams its tokens, so the
link is paid once an answer, not once a token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.map_markers import NANO, Marker, markers
from benchmarks.recordings import add_cost, add_source, changed, of_recording, source
from edge_drafter import Mode
from speculation.progress import progress
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.options import whole_numbers
from vlm_nav_evaluation.plots import COLOURS, MODE_COLOURS, SMALL, add_outputs, keep, new_figure
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, run_arms
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST, TABLE_9_LEAF

VERIFY_S = 0.020
"""T_q of every place. Only ratios count, as long as no way takes so long that a draft is sent again (2 s)."""
LEAST, MOST_DRAFT, MOST_WAY = 0.03, 12.0, 6.0
"""The axes, T_p / T_q and T_c / T_q, end here."""
GRID, QUICK_GRID = (12, 10), (4, 4)
"""Places over T_p / T_q and T_c / T_q."""
SYNTHETIC = "tokens=48"
TICKS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CONTOURS = (1.02, 1.5, 2.0, 3.0, 4.0)
"""Speed-ups with a line. The first is where `full` leaves plain cloud decoding; at 1 it is level over a wide area."""
CLOUD, SD, FSD = Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value
SPECULATIVE = tuple(mode.value for mode in Mode if mode.drafts)
STYLES = {
    "Early Exits": ("o", COLOURS[2]),
    "PicoSpec (Jetson AGX)": ("s", COLOURS[5]),
    "SpecEdge (RTX 4090)": ("D", "#F0E442"),
    "Orin, fast server": ("^", COLOURS[1]),
    NANO: ("v", COLOURS[3]),
}
"""Marker shape and colour by `Marker.paper`."""


def declared(draft: float, way: float, cost: str = DEFAULT_COST) -> Timings:
    """Return the timings of a place of the map; `cost` as in `Timings.with_cost`."""
    draft_s, way_s = draft * VERIFY_S, way * VERIFY_S
    return Timings("map", draft_s, TABLE_9_LEAF, VERIFY_S, one_way_s=way_s).with_cost(cost)


def at(
    draft: float, way: float, recording: Recording, mode: str, gammas: Sequence[int], cost: str = DEFAULT_COST
) -> dict[str, Any]:
    """Return how many times faster than `cloud` each mode is, step by step, where T_p and T_c are so many T_q.

    sd and fsd are given for every gamma, and the best median of them.
    """
    arms = [Arm(CLOUD, CLOUD), Arm(mode, mode)]
    arms += [Arm(f"{name} {gamma}", name, {"gamma": gamma}) for name in (SD, FSD) for gamma in gammas]
    run = run_arms(arms, recording, declared(draft, way, cost))
    faster = {arm.name: spread(run.ratios(CLOUD, arm.name)) for arm in arms[1:]}
    cell: dict[str, Any] = {"draft": draft, "way": way, mode: faster[mode]}
    for name in (SD, FSD):
        tried = {gamma: faster[f"{name} {gamma}"] for gamma in gammas}
        best = max(gammas, key=lambda gamma: tried[gamma]["median"])
        cell[f"{name}_best"] = {"gamma": best, **tried[best]}
        cell[f"{name}_median_by_gamma"] = {str(gamma): each["median"] for gamma, each in tried.items()}
    return cell


def grid(cells: Sequence[Mapping[str, Any]], columns: int, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the median speed-ups of one entry [rows, columns]."""
    return np.array([cell[name]["median"] for cell in cells]).reshape(-1, columns)


def plot(
    cells: Sequence[Mapping[str, Any]],
    drafts: Sequence[float],
    ways: Sequence[float],
    mode: str,
    caption: str,
    places: Sequence[Marker],
) -> Figure:
    """Return the map with markers at `places`; `caption` is one line about what was decoded."""
    figure = new_figure(8.6)
    axes = figure.add_subplot(xscale="log", yscale="log", xlim=(drafts[0], drafts[-1]), ylim=(ways[0], ways[-1]))
    entries = {mode: mode, **{name: f"{name}_best" for name in (SD, FSD) if name != mode}}
    medians = {name: grid(cells, len(drafts), entry) for name, entry in entries.items()}
    speed, numbers = np.maximum(medians[mode], 1.0), FuncFormatter(lambda value, _: f"{value:g}")
    shade = LinearSegmentedColormap.from_list("pays", ["#f2f2f2", "#d5e6f5", "#8fbfe0", "#3f87c0", "#1c4f8f"])
    most = max(2.0, float(speed.max()))
    levels = np.geomspace(1.0, 1.001 * most, 16)
    heat = axes.contourf(drafts, ways, speed, levels=levels, cmap=shade, norm=LogNorm(1.0, most))
    contours = [level for level in CONTOURS if medians[mode].min() < level < medians[mode].max()]
    if contours:
        lines = axes.contour(drafts, ways, medians[mode], levels=contours, colors="#123a66", linewidths=1.1)
        axes.clabel(lines, fmt=lambda level: f"{mode} {level:g}x", fontsize=SMALL)
    for name, style in ((FSD, "-"), (SD, "--")):
        best = grid(cells, len(drafts), f"{name}_best")
        if best.min() < 1.0 < best.max():
            axes.contour(drafts, ways, best, levels=[1.0], colors=MODE_COLOURS[name], linewidths=2.6, linestyles=style)
        axes.plot(
            [], [], style, color=MODE_COLOURS[name], linewidth=2.6, label=f"{name}: slower than cloud right of it"
        )
    for paper, (shape, fill) in STYLES.items():
        axes.plot([], [], shape, color=fill, markeredgecolor="black", label=paper)
    for each in places:
        shape, fill = STYLES[each.paper]
        axes.plot(*each.place, shape, color=fill, markeredgecolor="black", markersize=10, zorder=5)
        axes.annotate(
            each.label, each.place, each.at, textcoords="offset points", fontsize=SMALL, ha=each.align,
            fontweight="bold" if each.label == "Go2" else "normal",
            zorder=6, bbox={"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, fontsize=SMALL, title=caption, title_fontsize=SMALL)
    bar = figure.colorbar(heat, ax=axes, pad=0.01, aspect=30, label=f"{mode}: times faster than cloud decoding")
    bar.set_ticks([each for each in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if each <= most])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    for each_axis, end in ((axes.xaxis, drafts[-1]), (axes.yaxis, ways[-1])):
        each_axis.set_major_locator(FixedLocator([tick for tick in TICKS if tick <= 1.001 * end]))
        each_axis.set_minor_locator(NullLocator())
        each_axis.set_major_formatter(numbers)
    axes.set_xlabel("T_p / T_q: one draft token on the edge over one pass of the big model")
    axes.set_ylabel("T_c / T_q: one way over the link over one pass")
    worst = "\n".join(["worst place of the map:", *(f"{name} {each.min():.2f}x" for name, each in medians.items())])
    corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    axes.text(0.98, 0.97, worst, fontsize=SMALL, color="#333333", **corner)
    axes.set_title("Where drafting on the edge pays, and where it costs")
    return figure


def report(systems: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]], mode: str) -> str:
    """Return the speed-ups at the map's markers, and the worst places."""
    columns = [
        Column("T_p/T_q", "draft"),
        Column("T_c/T_q", "way"),
        *(column for name in (SD, FSD) for column in (
            Column(name, f"{name}_best.median"), Column("gamma", f"{name}_best.gamma", ".0f"))),
        *(Column(f"{mode} {name}", f"{mode}.{name}") for name in ("min", "median", "max")),
    ]  # fmt: skip
    rows = {f"{found['paper']}: {found['source'].split(':')[0]}": found for found in systems}
    worst = {name: min(cell[name]["median"] for cell in cells) for name in (mode, "sd_best", "fsd_best")}
    slowest = min(cell[mode]["min"] for cell in cells)
    slower = {name: sum(cell[f"{name}_best"]["median"] < 1.0 for cell in cells) / len(cells) for name in (SD, FSD)}
    beaten = max(max(cell["sd_best"]["median"], cell["fsd_best"]["median"]) / cell[mode]["median"] for cell in cells)
    return (
        f"times faster than cloud, in the median of the steps\n{figures_table('system', rows, columns)}\n\n"
        f"worst place of {len(cells)}: {mode} {worst[mode]:.3f} (slowest step {slowest:.3f}), sd "
        f"{worst['sd_best']:.3f}, fsd {worst['fsd_best']:.3f}\n"
        f"places where sd is slower than cloud {slower[SD]:.1%}, fsd {slower[FSD]:.1%}\n"
        f"sd or fsd at its best gamma against {mode} as shipped, best place: {beaten:.2f}"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.break_even", __doc__)
    add_source(line)
    line.add_argument("--mode", default=Mode.FULL.value, choices=SPECULATIVE, help="whose speed-up is the colour")
    add_cost(line)
    shown = "also mark an Orin in front of a server whose pass was measured to take so long"
    line.add_argument("--verify-ms", nargs="+", type=float, default=[], metavar="MS", help=shown)
    line.add_argument("--gammas", help="draft lengths of sd and fsd, the best counts (default: 1,2,4,8; quick: 4)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print and plot the map, and save what was asked."""
    if options.recording is None and options.synthetic is None:
        options.synthetic = SYNTHETIC
    if min(options.verify_ms, default=1.0) <= 0.0:
        raise ValueError(f"--verify-ms {min(options.verify_ms):g}: give more than 0")
    options.steps = options.steps or (2 if options.quick else 5)
    options.gammas = options.gammas or ("4" if options.quick else "1,2,4,8")
    recording, gammas = source(options), whole_numbers("--gammas", options.gammas, 16)
    columns, rows = QUICK_GRID if options.quick else GRID
    drafts, ways = (np.geomspace(LEAST, most, n).tolist() for most, n in ((MOST_DRAFT, columns), (MOST_WAY, rows)))
    grid_places = [(draft, way) for way in ways for draft in drafts]
    speed_ups = partial(at, recording=recording, mode=options.mode, gammas=gammas, cost=options.cost)
    cells = [speed_ups(*place) for place in progress(grid_places, unit="cell")]
    places = markers([each / 1e3 for each in options.verify_ms])
    systems = [{"paper": each.paper, "source": each.source, **speed_ups(*each.place)} for each in places]
    caption = _caption(options, recording, gammas)
    print(f"{caption}\n{report(systems, cells, options.mode)}")
    name = "break_even" if options.recording is None else f"break_even_{options.recording.stem}"
    name += "" if options.cost == DEFAULT_COST else f"_cost_{Path(options.cost).stem}"
    keep(plot(cells, drafts, ways, options.mode, caption, places), name, options)
    if options.save:
        about = {"settings": settings_of(options), **provenance(options), **of_recording(recording)}
        write_result(
            name, {**about, "verify_s": VERIFY_S, "draft_leaf": TABLE_9_LEAF, "cells": cells, "systems": systems}
        )


def _caption(options: argparse.Namespace, recording: Recording, gammas: Sequence[int]) -> str:
    lengths = [len(step.tokens) for step in recording.steps]
    if options.recording is not None:
        what = f"recorded ({options.recording.name})"
    else:
        rates = changed(Synthetic(), options.synthetic, "--synthetic").rates
        what = f"synthetic, acceptance {sum(rates) / len(rates):.3g}"
    best = f" at their best gamma of {', '.join(map(str, gammas))}" if len(gammas) > 1 else f" at gamma {gammas[0]}"
    return (
        f"virtual time, {len(lengths)} answers of {median(lengths):g} tokens, {what};\nsd and fsd{best};\n"
        f"{declared(1.0, 0.0, options.cost).cost_words}"
    )


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
