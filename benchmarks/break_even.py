"""Where edge speculation pays, and by how much: a map over T_p / T_q and T_c / T_q, on the clocked engine.

    python -m benchmarks.break_even --save

At every place of the map the same facts are decoded on virtual time by `cloud`, by plain `sd` and `fsd` (each at the
best of --gammas) and by --mode as it is shipped. Only the ratios of T_p, T_q and T_c count. `cloud` streams its tokens,
so the link is paid once an answer, not once a token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from tqdm import tqdm

from benchmarks.analytic import early_exits, picospec, specedge
from benchmarks.clocked import Recording, Synthetic, Timings
from benchmarks.clocked.__main__ import changed, source
from benchmarks.clocked.figures import run_mode
from benchmarks.clocked.timings import TABLE_9_LEAF
from edge_drafter import Mode
from evaluation.experiment.command import settings_of, write_result
from evaluation.figures import spread
from evaluation.plots import COLOURS, WIDTH, add_outputs, keep
from evaluation.tables import table

VERIFY_S = 0.020
"""T_q of every place. Only ratios count, as long as no way takes so long that a draft is sent again (2 s)."""
LEAST, MOST_DRAFT, MOST_WAY = 0.03, 12.0, 6.0
"""Ends of the axes: T_p / T_q and T_c / T_q."""
GRID, QUICK_GRID = (12, 10), (6, 5)
"""Places over T_p / T_q and T_c / T_q."""
DRAWN = "tokens=48"
CONTOURS = (1.02, 1.5, 2.0, 3.0, 4.0)
"""Speed-ups with a line. The first is where `full` leaves plain cloud decoding; at 1 itself it is level for miles."""
SPECULATIVE = tuple(mode.value for mode in (Mode.SD, Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL))
ORIN_DRAFT_S, FAST_SERVERS_S, FAST_LINK_S = early_exits.SYSTEMS["go2"].draft_s, (0.010, 0.020), 0.010


@dataclass(frozen=True)
class Marker:
    """A system on the map. `paper` groups markers; `at`: offset of the label in points, and how it is aligned."""

    paper: str
    label: str
    draft: float
    way: float
    source: str
    at: tuple[float, float] = (6.0, 0.0)
    align: str = "left"


def markers() -> list[Marker]:
    """Return the papers' systems, and an Orin against fast servers. WISP and DSSD print too little."""
    shown = {
        "go2": ("Go2", (-6.0, 7.0), "right"),
        "jetson_vicuna_7b": ("Jetson, 7B", (6.0, 5.0), "left"),
        "rtx_vicuna_7b": ("RTX, 7B", (-2.0, -13.0), "center"),
        "jetson_vicuna_13b": ("Jetson, 13B", (7.0, -3.0), "left"),
        "rtx_vicuna_13b": ("RTX, 13B", (7.0, -4.0), "left"),
        "jetson_llama2_7b": ("", (0.0, 0.0), "left"),
        "rtx_llama2_7b": ("", (0.0, 0.0), "left"),
    }
    found = [
        Marker(
            "Early Exits",
            label,
            system.draft_s / system.verify_s,
            system.one_way_s / system.verify_s,
            f"{system.label}: Early Exits, Table {'8(a)' if name == 'go2' else '5'}",
            at,
            align,
        )
        for name, (label, at, align) in shown.items()
        for system in (early_exits.SYSTEMS[name],)
    ]
    for name, label in (("qwen_gsm8k", "Qwen3 32B"), ("llama_gsm8k", "Llama 70B")):
        pair = picospec.PAIRS[name]
        told = "PicoSpec, Tables 1 to 3; T_q is one token of cloud decoding, T_c what the stop-and-wait round leaves"
        found.append(
            Marker(
                "PicoSpec (Jetson AGX)",
                label,
                pair.draft_s / pair.decode_s,
                pair.one_way_s / pair.decode_s,
                f"{pair.label}: {told}",
                (7.0, -3.0),
            )
        )
    edge = specedge.PRINTED
    found.append(
        Marker(
            "SpecEdge (RTX 4090)",
            "Qwen3 32B",
            edge.draft_s / edge.verify_s,
            edge.one_way_s / edge.verify_s,
            "Qwen3 1.7B/32B: SpecEdge, Sec. 5.1 and 5.2; T_q is that of a batch",
            (0.0, -15.0),
            "center",
        )
    )
    for verify_s in FAST_SERVERS_S:
        found.append(
            Marker(
                "Orin, fast server",
                f"T_q {1e3 * verify_s:.0f} ms",
                ORIN_DRAFT_S / verify_s,
                FAST_LINK_S / verify_s,
                f"T_q {1e3 * verify_s:g} ms, T_c {1e3 * FAST_LINK_S:g} ms: assumed; T_p: Early Exits, Table 8(a)",
                (0.0, 8.0),
                "center",
            )
        )
    return found


def axis(most: float, count: int) -> list[float]:
    """Return `count` ratios from `LEAST` to `most` at equal distances on a logarithmic scale."""
    return [float(each) for each in np.geomspace(LEAST, most, count)]


def at(
    draft: float, way: float, recording: Recording, mode: str, gammas: Sequence[int], cloud_s: Sequence[float]
) -> dict[str, Any]:
    """Return how many times faster than `cloud` each mode is, step by step, where T_p and T_c are so many T_q.

    cloud_s: the steps' times in mode cloud. sd and fsd are given for every gamma, and the best median of them.
    """
    timings = declared(draft, way)

    def faster(name: str, **changes: Any) -> dict[str, float]:
        results = run_mode(name, recording, timings, **changes)
        return spread([base / result.stats.total_s for base, result in zip(cloud_s, results, strict=True)])

    cell: dict[str, Any] = {"draft": draft, "way": way, mode: faster(mode)}
    for name in (Mode.SD.value, Mode.FSD.value):
        tried = {gamma: faster(name, gamma=gamma) for gamma in gammas}
        best = max(gammas, key=lambda gamma: tried[gamma]["median"])
        cell[f"{name}_best"] = {"gamma": best, **tried[best]}
        cell[f"{name}_median_by_gamma"] = {str(gamma): each["median"] for gamma, each in tried.items()}
    return cell


def declared(draft: float, way: float) -> Timings:
    """Return the timings of a place of the map."""
    return Timings("map", draft * VERIFY_S, TABLE_9_LEAF, VERIFY_S, one_way_s=way * VERIFY_S)


def survey(
    recording: Recording, drafts: Sequence[float], ways: Sequence[float], mode: str, gammas: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the map's cells, row by row of T_c / T_q."""
    cells = []
    with tqdm(total=len(drafts) * len(ways), unit="cell", disable=None) as bar:
        for way in ways:
            cloud = run_mode(Mode.CLOUD.value, recording, declared(drafts[0], way))
            cloud_s = [result.stats.total_s for result in cloud]
            for draft in drafts:
                cells.append(at(draft, way, recording, mode, gammas, cloud_s))
                bar.update()
    return cells


def grid(cells: Sequence[Mapping[str, Any]], columns: int, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the median speed-ups of one entry [rows, columns]."""
    return np.array([cell[name]["median"] for cell in cells]).reshape(-1, columns)


def draw(
    cells: Sequence[Mapping[str, Any]], drafts: Sequence[float], ways: Sequence[float], mode: str, told: str
) -> Figure:
    """Return the map; `told` says in a line what was decoded."""
    figure = Figure(figsize=(WIDTH, 6.3), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    speed = np.maximum(grid(cells, len(drafts), mode), 1.0)
    shade = LinearSegmentedColormap.from_list("pays", ["#f2f2f2", "#d5e6f5", "#8fbfe0", "#3f87c0", "#1c4f8f"])
    most = max(2.0, float(speed.max()))
    heat = axes.contourf(
        drafts, ways, speed, levels=np.geomspace(1.0, 1.001 * most, 16), cmap=shade, norm=LogNorm(1.0, most)
    )
    _lines(axes, cells, drafts, ways, mode)
    _mark(axes)
    bar = figure.colorbar(heat, ax=axes, pad=0.01, aspect=30)
    bar.set_ticks([each for each in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if each <= most])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    bar.set_label(f"{mode}: times faster than cloud decoding")
    for each, end in ((axes.xaxis, drafts[-1]), (axes.yaxis, ways[-1])):
        ticks = [tick for tick in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0) if tick <= 1.001 * end]
        each.set_major_locator(FixedLocator(ticks))
        each.set_minor_locator(NullLocator())
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(drafts[0], drafts[-1])
    axes.set_ylim(ways[0], ways[-1])
    axes.set_xlabel("T_p / T_q: one draft token on the edge over one pass of the big model")
    axes.set_ylabel("T_c / T_q: one way over the link over one pass")
    worst = {name: float(grid(cells, len(drafts), entry).min()) for name, entry in _entries(mode).items()}
    told_worst = "\n".join(f"{name} {value:.2f}x" for name, value in worst.items())
    axes.text(0.98, 0.97, f"worst place of the map:\n{told_worst}", transform=axes.transAxes, ha="right", va="top",
              fontsize=10, color="#333333")  # fmt: skip
    axes.set_title("Where drafting on the edge pays, and where it costs")
    figure.supxlabel(told, fontsize=8, color="#555555")
    return figure


def _entries(mode: str) -> dict[str, str]:
    """Return the modes of the map with their entries in a cell."""
    return {mode: mode, **{name: f"{name}_best" for name in (Mode.SD.value, Mode.FSD.value) if name != mode}}


def _lines(
    axes: Axes, cells: Sequence[Mapping[str, Any]], drafts: Sequence[float], ways: Sequence[float], mode: str
) -> None:
    """Draw the contours of `mode`, and the break-even lines of sd and fsd."""
    speed = grid(cells, len(drafts), mode)
    levels = [level for level in CONTOURS if speed.min() < level < speed.max()]
    if levels:
        lines = axes.contour(drafts, ways, speed, levels=levels, colors="#123a66", linewidths=1.1)
        axes.clabel(lines, fmt=lambda level: f"{mode} {level:g}x", fontsize=8)
    for name, style in ((Mode.FSD.value, "-"), (Mode.SD.value, "--")):
        best = grid(cells, len(drafts), f"{name}_best")
        if best.min() < 1.0 < best.max():
            axes.contour(drafts, ways, best, levels=[1.0], colors=COLOURS[name], linewidths=2.6, linestyles=style)


def _mark(axes: Axes) -> None:
    shapes = {"Early Exits": "o", "PicoSpec (Jetson AGX)": "s", "SpecEdge (RTX 4090)": "D", "Orin, fast server": "^"}
    fills = {"Early Exits": "#54a24b", "PicoSpec (Jetson AGX)": "#72b7b2", "SpecEdge (RTX 4090)": "#eeca3b",
             "Orin, fast server": "#e45756"}  # fmt: skip
    for each in markers():
        axes.plot(each.draft, each.way, shapes[each.paper], color=fills[each.paper], markeredgecolor="black",
                  markersize=8, zorder=5)  # fmt: skip
        axes.annotate(
            each.label, (each.draft, each.way), each.at, textcoords="offset points", fontsize=9, ha=each.align,
            fontweight="bold" if each.label == "Go2" else "normal",
            zorder=6, bbox={"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    handles = [
        Line2D([], [], color=COLOURS["sd"], linestyle="--", linewidth=2.6, label="sd: slower than cloud beyond"),
        Line2D([], [], color=COLOURS["fsd"], linewidth=2.6, label="fsd: slower than cloud beyond"),
        *(
            Line2D([], [], marker=shape, linestyle="", color=fills[paper], markeredgecolor="black", label=paper)
            for paper, shape in shapes.items()
        ),
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=9, framealpha=0.9)


def placed(recording: Recording, mode: str, gammas: Sequence[int]) -> list[dict[str, Any]]:
    """Return a cell for every marker, with what it is."""
    found = []
    for each in markers():
        cloud = run_mode(Mode.CLOUD.value, recording, declared(each.draft, each.way))
        cell = at(each.draft, each.way, recording, mode, gammas, [result.stats.total_s for result in cloud])
        found.append({"paper": each.paper, "source": each.source, **cell})
    return found


def report(systems: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]], mode: str) -> str:
    """Return what the map says at its markers, and the worst that happens anywhere."""
    rows = []
    for found in systems:
        rows.append(
            (
                f"{found['paper']}: {found['source'].split(':')[0]}",
                f"{found['draft']:.2f}",
                f"{found['way']:.2f}",
                *(
                    f"{found[f'{name}_best']['median']:.2f} ({found[f'{name}_best']['gamma']})"
                    for name in ("sd", "fsd")
                ),
                *(f"{found[mode][name]:.2f}" for name in ("min", "median", "max")),
            )
        )
    header = ("system", "T_p/T_q", "T_c/T_q", "sd (gamma)", "fsd (gamma)", f"{mode} min", "median", "max")
    worst = {name: min(cell[name]["median"] for cell in cells) for name in (mode, "sd_best", "fsd_best")}
    slowest = min(cell[mode]["min"] for cell in cells)
    beaten = max(max(cell["sd_best"]["median"], cell["fsd_best"]["median"]) / cell[mode]["median"] for cell in cells)
    return (
        f"times faster than cloud, in the median of the steps\n{table(header, rows)}\n\n"
        f"worst place of {len(cells)}: {mode} {worst[mode]:.3f} (slowest step {slowest:.3f}), sd "
        f"{worst['sd_best']:.3f}, fsd {worst['fsd_best']:.3f}\n"
        f"sd or fsd at its best gamma against {mode} as shipped, best place: {beaten:.2f}"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.break_even", description=(__doc__ or "").splitlines()[0])
    line.add_argument(
        "--facts",
        type=Path,
        help="file of `benchmarks.clocked record`, which names the picture too; without it facts are drawn",
    )
    line.add_argument("--draw", metavar="NAME=VALUE,...", help=f"drawn facts, as benchmarks.clocked (default: {DRAWN})")
    line.add_argument("--steps", type=int, help="answers decoded at every place (default: 5, quick: 2)")
    line.add_argument("--mode", default=Mode.FULL.value, choices=SPECULATIVE, help="whose speed-up is the colour")
    line.add_argument("--gammas", help="draft lengths of sd and fsd, the best counts (default: 1,2,4,8; quick: 4)")
    add_outputs(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the map. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        _complete(options)
        recording = source(options)
        gammas = _gammas(options.gammas)
        columns, rows = QUICK_GRID if options.quick else GRID
        drafts, ways = axis(MOST_DRAFT, columns), axis(MOST_WAY, rows)
        cells = survey(recording, drafts, ways, options.mode, gammas)
        told = _told(options, recording, gammas)
        systems = placed(recording, options.mode, gammas)
        print(f"{told}; virtual time\n{report(systems, cells, options.mode)}")
        name = "break_even" if options.facts is None else f"break_even_{options.facts.stem}"
        keep(draw(cells, drafts, ways, options.mode, told), name, options)
        if options.save:
            data = {
                "settings": settings_of(options, "save", "out"),
                "source": dict(recording.notes),
                "verify_s": VERIFY_S,
                "draft_leaf": TABLE_9_LEAF,
                "cells": cells,
                "systems": systems,
            }
            write_result(name, data)
    except (ValueError, OSError) as error:
        print(f"break_even: {error}", file=sys.stderr)
        return 2
    return 0


def _complete(options: argparse.Namespace) -> None:
    """Fill in what depends on --quick and --facts. Raises ValueError."""
    if options.facts is not None and options.draw is not None:
        raise ValueError("--draw and --facts: choose one")
    if options.draw is None:
        options.draw = "" if options.facts is not None else DRAWN
    options.steps = options.steps if options.steps is not None else (2 if options.quick else 5)
    options.gammas = options.gammas or ("4" if options.quick else "1,2,4,8")


def _gammas(text: str) -> list[int]:
    try:
        gammas = sorted({int(word) for word in text.split(",")})
    except ValueError:
        gammas = []
    if not gammas or not 1 <= gammas[0] <= gammas[-1] <= 16:
        raise ValueError(f"--gammas {text}: give numbers from 1 to 16, joined by commas")
    return gammas


def _told(options: argparse.Namespace, recording: Recording, gammas: Sequence[int]) -> str:
    lengths = [len(facts.tokens) for facts in recording.steps]
    what = f"{len(lengths)} answers of {median(lengths):g} tokens"
    if options.facts is not None:
        facts = f"facts of {options.facts.name}"
    else:
        rates = changed(Synthetic(), options.draw, "--draw").rates
        facts = f"drawn facts, acceptance {sum(rates) / len(rates):.3g}"
    best = f" at their best gamma of {', '.join(map(str, gammas))}" if len(gammas) > 1 else f" at gamma {gammas[0]}"
    return f"clocked engine, {what}, {facts}; sd and fsd{best}"


if __name__ == "__main__":
    sys.exit(main())
