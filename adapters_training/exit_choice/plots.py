"""Plot of exits' reliability: confidence against agreement."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

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
