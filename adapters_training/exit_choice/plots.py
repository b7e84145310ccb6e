"""Plots of exits: reliability (confidence against agreement), and what a set of exits saves. Figures in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adapters_training.exit_choice.selection import Choice
from adapters_training.exit_choice.verdicts import Verdicts
from speculation.exits import Head

HEAD_COLOURS = {Head.FULL: "#4c78a8", Head.SHORT: "#f58518"}
HEAD_NAMES = {Head.FULL: "full head", Head.SHORT: "short list"}
COLUMNS = 6
LEAST_SHOWN = 10
"""A bin of fewer verdicts gets no point: its rate would be noise."""


def plot_reliability(verdicts: Verdicts, title: str) -> Figure:
    """Return a panel per exit: agreement of its verdicts by confidence in ten bins, and how many fell in each."""
    count = len(verdicts.layers)
    rows = -(-count // COLUMNS)
    columns = -(-count // rows)
    # wide enough for the title and the legend, however few the exits
    figure = Figure(figsize=(max(6.5, 0.6 + 2.7 * columns), 1.3 + 3.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for index, axes in enumerate(panels.flat):
        if index >= count:
            axes.set_visible(False)
            continue
        _panel(axes, verdicts, index)
        if index % columns == 0:
            axes.set_ylabel("agrees with the final verdict")
        if index + columns >= count:
            axes.set_xlabel("confidence of the exit")
            axes.tick_params(labelbottom=True)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5 if columns > 4 else 2, fontsize=9)
    figure.suptitle(title, fontsize=11)
    return figure


def _panel(axes: Any, verdicts: Verdicts, index: int) -> None:
    axes.plot([0, 1], [0, 1], color="#9d9d9d", linewidth=1, linestyle="--", label="as confident as right")
    words = []
    width = 0.1 / len(verdicts.by_head)
    for place, (head, judged) in enumerate(verdicts.by_head.items()):
        found = judged.binned(index)
        colour = HEAD_COLOURS[head]
        total = int(judged.spoke[index].sum())
        lefts = [min(9, int(10 * confidence)) / 10 + place * width for confidence, _, _ in found]
        shares = [number / max(1, total) for _, _, number in found]
        axes.bar(lefts, shares, width, align="edge", color=colour, alpha=0.25,
                 label=f"{HEAD_NAMES[head]}: share of its verdicts")  # fmt: skip
        solid = [(confidence, agreement) for confidence, agreement, number in found if number >= LEAST_SHOWN]
        axes.plot([confidence for confidence, _ in solid], [agreement for _, agreement in solid], "o-", color=colour,
                  markersize=4, label=f"{HEAD_NAMES[head]}: agreement")  # fmt: skip
        words.append(f"{judged.agreed[index].mean():.0%} {head.value}")
    axes.set_title(f"layer {verdicts.layers[index]}: right {', '.join(words)}", fontsize=9)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.grid(alpha=0.3)


def plot_selection(choices: Sequence[Choice], chosen: Choice, layers: Sequence[int], title: str) -> Figure:
    """Return what the best set of each size saves and costs (left), and which exits are in it (right)."""
    sizes = [len(choice.layers) for choice in choices]
    figure = Figure(figsize=(9.5, 2.2 + 0.32 * len(sizes)), layout="constrained")
    gain, which = figure.subplots(1, 2, sharey=True, width_ratios=(1.2, 1))
    net = [1e3 * choice.saved_s for choice in choices]
    gross = [1e3 * (choice.saved_s + choice.cost_s) for choice in choices]
    gain.barh(sizes, gross, 0.6, color="#54a24b", alpha=0.3, label="head start")
    gain.barh(sizes, net, 0.6, color="#54a24b", label="saved: head start less the exits' own time")
    room = 0.02 * max([*gross, 1e-9])
    for size, value, choice in zip(sizes, net, choices, strict=True):
        gain.text(1e3 * (choice.saved_s + choice.cost_s) + room, size, f"{value:.3g}, right {choice.right:.0%}",
                  va="center", fontsize=9)  # fmt: skip
    gain.set_xlim(min(0.0, *net), 1.45 * max([*gross, 1e-9]))
    gain.set_xlabel("ms a verification, expected")
    gain.set_ylabel("number of exits")
    gain.set_yticks(sizes)
    gain.invert_yaxis()
    gain.grid(axis="x", alpha=0.3)
    for size, choice in zip(sizes, choices, strict=True):
        colour = "#54a24b" if choice == chosen else "#4c78a8"
        which.plot(layers, [size] * len(layers), ".", color="#d0d0d0", markersize=5)
        which.plot(choice.layers, [size] * len(choice.layers), "o", color=colour, markersize=9)
    which.axhspan(len(chosen.layers) - 0.42, len(chosen.layers) + 0.42, color="#54a24b", alpha=0.15)
    which.set_xlabel("exit after layer (green: chosen)")
    if len(layers) <= 14:
        which.set_xticks(list(layers))
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    figure.suptitle(title, fontsize=11)
    return figure
