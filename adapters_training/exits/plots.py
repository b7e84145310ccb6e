"""Plot of what exits are worth: agreement with the last layer over depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

COLOURS = {"ce": "#f58518", "kl": "#54a24b", "mix": "#4c78a8"}
MARKERS = {"ce": "s", "kl": "x", "mix": "^"}
"""They distinguish lines that lie on each other."""
NAMES = {"ce": "adapter, cross-entropy", "kl": "adapter, KL to the last layer", "mix": "adapter, both losses"}


def plot_agreement(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return agreement over layers for the runs of `results`, by loss, and for norm and head alone."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for loss, found in results.items():
        _line(axes, found["agreement"], COLOURS[loss], NAMES[loss], "-", MARKERS[loss])
    first = next(iter(results.values()))
    _line(axes, first["agreement without adapter"], "#9d9d9d", "no adapter", "--", "o")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("exit after layer (from 0)")
    axes.set_ylabel("first choice is the last layer's")
    axes.set_title(f"Exits on {first['tokens']:,} held-out tokens, {first['steps']:,} steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure


def _line(axes: Any, rates: Mapping[Any, float], colour: str, name: str, style: str, marker: str) -> None:
    layers = [int(layer) for layer in rates]
    axes.plot(
        layers,
        list(rates.values()),
        style,
        marker=marker,
        markersize=7,
        markerfacecolor="none",
        color=colour,
        label=name,
    )
