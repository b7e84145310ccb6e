"""Plots of a fleet's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from evaluation.fleet.wisp import CAPACITY, CLASSES
from evaluation.plots import PAPER, new_figure
from speculation.service import SERVICE_CLASSES

COLOURS = {
    "sled": "#9d9d9d", "central": "#4c78a8", "server_sd": "#b279a2", "fcfs": "#f58518", "wisp": "#54a24b",
    "fcfs, ahead": "#72b7b2", "full_budget": "#e45756", "full_budget, ledger": "#eeca3b",
}  # fmt: skip
PAPER_NAMES = {"sled": "SLED", "central": "centralised", "wisp": "WISP"}


def wisp_plot(data: Mapping[str, Any]) -> Figure:
    """Return capacity by class beside the paper's, and violations and goodput by the number of robots."""
    figure = new_figure(8.0)
    above, left, right = figure.subplot_mosaic("AA\nLR").values()
    classes = list(next(iter(data["capacity"].values())))
    width = 0.8 / len(data["capacity"])
    for place, (system, by_class) in enumerate(data["capacity"].items()):
        at = np.arange(len(classes)) + (place - (len(data["capacity"]) - 1) / 2) * width
        above.bar(at, [by_class[name]["robots"][-1] for name in classes], width, color=COLOURS[system], label=system)
        if system in PAPER_NAMES:
            printed = [CAPACITY[PAPER_NAMES[system]][CLASSES.index(name)] for name in classes]
            above.plot(at, printed, "D", color=PAPER, markersize=4, label="paper" if system == "wisp" else None)
    names = [f"{SERVICE_CLASSES[name].tokens_per_s:g} tokens/s" for name in classes]
    above.set_xticks(range(len(classes)), names)
    above.set_ylabel("robots with at most 5 % too slow")
    above.legend(ncols=4, fontsize=8)
    for system, runs in data["load"].items():
        robots = [int(each) for each in runs]
        left.plot(robots, [100 * each["violations"] for each in runs.values()], "o-", color=COLOURS[system])
        right.plot(robots, [each["goodput"] for each in runs.values()], "o-", color=COLOURS[system])
    left.set(xlabel="robots, mixed classes", ylabel="requests too slow, %")
    right.set(xlabel="robots, mixed classes", ylabel="committed tokens/s")
    return figure


def specedge_plot(data: Mapping[str, Any]) -> Figure:
    """Return tokens/s against inter-token latency of every system and batch, by pair of models."""
    figure = new_figure(4.5)
    every = figure.subplots(1, len(data["rows"]), squeeze=False)[0]
    for axes, (pair, by_batch) in zip(every, data["rows"].items(), strict=True):
        points: dict[str, list[tuple[float, float]]] = {}
        for rows in by_batch.values():
            for name, row in rows.items():
                points.setdefault(name.split(" ")[0].rstrip(","), []).append(
                    (1e3 * row["itl_s"]["median"], row["tokens_per_s"]["median"])
                )
        for name, found in points.items():
            axes.plot(*zip(*found, strict=True), "o-", label=name)
        axes.set(
            xlabel="ms a token", ylabel="tokens/s of the server", title=f"{pair}, batch {', '.join(map(str, by_batch))}"
        )
        axes.legend(fontsize=8)
    return figure


def replicas_plot(data: Mapping[str, Any]) -> Figure:
    """Return the robots that are served in time by the number of replicas."""
    figure = new_figure(4.5)
    axes = figure.subplots()
    for placement, rows in data["rows"].items():
        axes.plot([int(each) for each in rows], [each["kept"] for each in rows.values()], "o-", label=placement)
    axes.set(xlabel="replicas", ylabel="robots served in time")
    axes.legend()
    return figure
