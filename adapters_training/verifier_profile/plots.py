"""Plot of a fit: predicted against measured seconds, and by how much each pass was missed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from adapters_training.verifier_profile.configurations import Configuration, Kind
from speculation.cost_profile import CostProfile
from speculation.pass_cost import Floats

COLOURS = {Kind.COMPUTE: "#e45756", Kind.MEMORY: "#4c78a8", Kind.MIXED: "#54a24b"}
Measured = tuple[Sequence[Configuration], Floats]
"""Configurations and their seconds [n]."""


def plot(profile: CostProfile, train: Measured, test: Measured) -> Figure:
    """Return predicted against measured milliseconds (left) and the relative errors (right)."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    against, errors = figure.subplots(1, 2)
    for (configurations, seconds), marker, part in ((train, "o", "training"), (test, "x", "test")):
        for kind, colour in COLOURS.items():
            chosen = [index for index, each in enumerate(configurations) if each.kind is kind]
            if not chosen:
                continue
            measured = 1e3 * seconds[chosen]
            predicted = [1e3 * profile.cost.seconds(configurations[index].load) for index in chosen]
            style = {"color": colour, "marker": marker, "s": 22, "alpha": 0.7, "linewidths": 1.0}
            against.scatter(measured, predicted, label=f"{kind.value}, {part}", **style)
            off = [100.0 * (guess / true - 1.0) for guess, true in zip(predicted, measured, strict=True)]
            errors.scatter(measured, off, **style)
    ends = [1e3 * min(train[1].min(), test[1].min()), 1e3 * max(train[1].max(), test[1].max())]
    against.plot(ends, ends, color="#9d9d9d", linewidth=1, linestyle="--")
    errors.axhline(0.0, color="#9d9d9d", linewidth=1, linestyle="--")
    for axes in (against, errors):
        axes.set_xscale("log")
        axes.set_xlabel("measured, ms")
        axes.grid(alpha=0.3)
    against.set_yscale("log")
    against.set_ylabel("predicted, ms")
    against.legend(fontsize=8)
    errors.set_ylabel("predicted above measured, %")
    figure.suptitle(
        f"Passes of {profile.name} ({profile.dtype}, {profile.device}): test R2 {profile.test.r2:.4f}, "
        f"MAPE {profile.test.mape:.1%}",
        fontsize=11,
    )
    return figure
