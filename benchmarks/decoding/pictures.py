"""Pictures of the tables: figures in, matplotlib figures out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.pictures import COLOURS, PAPER, plain
from speculation.drafting import Mode

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
WIDTH = 9.0


def draw_modes(settings: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return a panel for each setting: how many times faster than `cloud` each mode is, against the round trip."""
    columns = min(3, len(settings) + 1)
    rows = math.ceil((len(settings) + 1) / columns)
    figure = Figure(figsize=(WIDTH, 0.4 + 3.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    lines: dict[str, Any] = {}
    for axes, (title, entries) in zip(panels, settings.items(), strict=False):
        lines = {**_speed_ups(axes, entries), **lines}
        axes.set_title(title, fontsize=11)
    for axes in panels[len(settings) :]:
        axes.set_axis_off()
    panels[len(settings)].legend(lines.values(), lines, loc="center", fontsize=10, frameon=False)
    for place in range(0, len(panels), columns):
        panels[place].set_ylabel("times faster than cloud")
    for axes in panels[max(0, len(settings) - columns) : len(settings)]:
        axes.set_xlabel("round trip, ms")
    figure.suptitle("Speed-up over cloud-only decoding (median over frames, 95 % interval)", fontsize=12)
    return figure


def _speed_ups(axes: Any, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rtts = [1e3 * each["rtt_s"] for each in entries]
    lines = {}
    for mode in entries[0]["modes"]:
        if mode == Mode.CLOUD.value:
            continue
        low, middle, high = np.array([each["modes"][mode]["times_cloud"] for each in entries]).T
        alone = mode == Mode.EDGE.value
        label = "edge (unverified)" if alone else mode
        colour, width = COLOURS[mode], 2.8 if mode == Mode.FULL.value else 1.6
        (lines[label],) = axes.plot(
            rtts, middle, ":" if alone else "-", color=colour, linewidth=width, marker="o", markersize=3.5
        )
        axes.fill_between(rtts, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.axhline(1.0, color=COLOURS[Mode.CLOUD.value], linewidth=1.6)
    _times_axis(axes)
    axes.set_xticks(rtts)
    plain(axes)
    return lines


def _times_axis(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def draw_ablation(sources: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return bars of a step's time without each technique over that of `full`, one panel for each source of facts."""
    longest = max(len(rows) for rows in sources.values())
    figure = Figure(figsize=(WIDTH, 1.4 + 0.32 * longest), layout="constrained")
    panels = figure.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, sources.items(), strict=True):
        places = np.arange(len(rows))
        low, middle, high = 100.0 * (np.array([row["slower"] for row in rows]).T - 1.0)
        colours = [COLOURS["full"] if value > 0 else COLOURS["edge"] for value in middle]
        axes.barh(places, middle, 0.66, color=colours)
        axes.hlines(places, low, high, color=PAPER, linewidth=1.2)
        axes.axvline(0.0, color=PAPER, linewidth=1.0)
        axes.set_yticks(places, [row["name"] for row in rows], fontsize=10)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("step time, % more than full")
        plain(axes, "x")
    panels[0].invert_yaxis()
    figure.suptitle("What full loses without one technique (Go2 times, virtual; line: 95 % interval)", fontsize=12)
    return figure


def draw_sweeps(data: Mapping[str, Sequence[Mapping[str, Any]]], paper: Mapping[str, float]) -> Figure:
    """Return three panels, as Early Exits, Fig. 4: over threads, over gamma, and over the number of exits."""
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    threads, gammas, exits = figure.subplots(1, 3)
    _with_misses(threads, data["threads"], "threads", "threads (branches side by side)")
    _with_misses(exits, data["exits"], "exits", "exits in the target")
    rows = data["gammas"]
    for key, label, colour in (("sd_over_cloud", "sd over cloud", COLOURS["sd"]),
                               ("fsd_over_sd", "fsd over sd", COLOURS["fsd"])):  # fmt: skip
        gammas.plot([row["gamma"] for row in rows], [row[key][1] for row in rows], "o-", color=colour, label=label,
                    markersize=4)  # fmt: skip
    for axes, place, values in ((threads, paper["threads"], [paper["fsd_over_sd"]]),
                                (gammas, paper["gamma"], [paper["fsd_over_sd"], paper["sd_over_cloud"]])):  # fmt: skip
        axes.plot([place] * len(values), values, "D", color=PAPER, markersize=6, label="paper, Table 6")
    gammas.axhline(1.0, color="#9ca3af", linewidth=1.0)
    gammas.set_xlabel("gamma")
    gammas.set_ylabel("times faster")
    plain(gammas)
    for axes in (threads, gammas, exits):
        axes.legend(fontsize=9, frameon=False, loc="best")
    figure.suptitle("Vicuna-68M/7B on RTX times, GSM8K's tau and misses, drawn facts, virtual time", fontsize=12)
    return figure


def _with_misses(axes: Any, rows: Sequence[Mapping[str, Any]], key: str, label: str) -> None:
    places = [row[key] for row in rows]
    axes.plot(places, [row["fsd_over_sd"][1] for row in rows], "o-", color=COLOURS["fsd"], markersize=4,
              label="fsd over sd")  # fmt: skip
    axes.set_xlabel(label)
    axes.set_ylabel("times faster")
    plain(axes)
    other = axes.twinx()
    other.plot(places, [100.0 * row["miss_rate"] for row in rows], "s--", color="#6b7280", markersize=3, linewidth=1.2)
    other.set_ylabel("misses, % (dashed)", color="#6b7280")
    other.set_ylim(0, 105)
    other.tick_params(axis="y", colors="#6b7280")
    other.spines["top"].set_visible(False)
