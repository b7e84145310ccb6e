"""Plots of the tables: figures in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edge_drafter import Mode
from vlm_nav_evaluation.plots import COLOURS, PAPER, new_figure, plain

EDGE, FULL = (mode.value for mode in (Mode.EDGE, Mode.FULL))


def plot_ablation(sources: Mapping[str, Sequence[Mapping[str, Any]]], way: str, cost: str) -> Figure:
    """Return bars of a step's time without each technique over that of `full`, one panel for each recording.

    way: how `full` is set, its arm's name. cost: what loads cost, in words.
    """
    figure = new_figure(1.4 + 0.32 * max(len(rows) for rows in sources.values()))
    panels = figure.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, sources.items(), strict=True):
        places = np.arange(len(rows))
        low, middle, high = 100.0 * (np.array([row["slower"] for row in rows]).T - 1.0)
        axes.barh(places, middle, 0.66, color=[COLOURS[FULL if value > 0 else EDGE] for value in middle])
        axes.hlines(places, low, high, color=PAPER, linewidth=1.2)
        for place, value in zip(places, middle, strict=True):
            label = f"{round(value):+d} %" if round(value) else "0 %"
            axes.text(1.0, place, label, va="center", fontsize=10, transform=axes.get_yaxis_transform())
        axes.axvline(0.0, color=PAPER, linewidth=1.0)
        axes.set_yticks(places, [row["name"] for row in rows], fontsize=10)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("step time, % more than with it")
        plain(axes, "x")
    panels[0].invert_yaxis()
    title = f"What {way} loses without one technique (Go2 times, virtual; line: 95 % interval)"
    figure.suptitle(f"{title}\n{cost}", fontsize=12)
    return figure


def plot_sweeps(
    data: Mapping[str, Sequence[Mapping[str, Any]]], paper: Mapping[str, float], cost: str, answers: str
) -> Figure:
    """Return speed-ups above misses over threads, gamma and the number of exits, as Early Exits, Fig. 4.

    cost, answers: what loads cost, and what was decoded, in words.
    """
    figure = new_figure(5.2)
    above, below = figure.subplots(2, 3, sharex="col", sharey="row")
    fsd, fifo, finish, sd = (COLOURS[mode] for mode in ("fsd", "server_sd", "pipelined", "sd"))
    curves = (
        (0, "threads", "threads", "fsd_over_sd", "fsd over sd", fsd),
        (0, "threads_fifo", "threads", "fsd_over_sd", "fsd over sd, edge queue FIFO", fifo),
        (0, "threads_finish", "threads", "fsd_over_sd", "fsd over sd, threads that finish", finish),
        (1, "gammas", "gamma", "fsd_over_sd", None, fsd),
        (1, "gammas", "gamma", "sd_over_cloud", "sd over cloud", sd),
        (2, "exits", "exits", "fsd_over_sd", None, fsd),
    )
    for column, name, key, ratio, label, colour in curves:
        places, rows = [row[key] for row in data[name]], data[name]
        style = {"color": colour, "markersize": 4}
        above[column].plot(places, [row[ratio][1] for row in rows], "o-", label=label, **style)
        if ratio == "fsd_over_sd":
            below[column].plot(places, [100.0 * row["miss_rate"] for row in rows], "o-", **style)
    marks = {"marker": "D", "linestyle": "", "markersize": 6, "markeredgecolor": PAPER}
    for column, place in ((0, paper["threads"]), (1, paper["gamma"])):
        above[column].plot([place], [paper["fsd_over_sd"]], color=fsd, **marks)
        below[column].plot([place], [100.0 * paper["miss_rate"]], color=fsd, **marks)
    above[1].plot([paper["gamma"]], [paper["sd_over_cloud"]], color=sd, **marks)
    above[0].plot([], [], color="white", label="paper, Table 6", **marks)
    for axes in (*above, *below):
        plain(axes)
    for axes in above:
        axes.axhline(1.0, color="#9ca3af", linewidth=1.0)
    for axes, label in zip(below, ("threads", "gamma", "exits in the target"), strict=True):
        axes.set_ylim(0, 105)
        axes.set_xlabel(label)
    above[0].set_ylabel("times faster")
    below[0].set_ylabel("misses, %")
    figure.legend(loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    title = f"RTX times of Early Exits, virtual time; {answers}"
    figure.suptitle(f"{title}\n{cost}", fontsize=12)
    return figure
