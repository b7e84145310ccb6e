"""The plot of `acting`: what a faster answer does for the robot, by what the robot does with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlm_nav_evaluation.plots import MODE_COLOURS, new_figure

DASHES = {"wait": ":", "wait-action": "-.", "early": "--", "ahead": "-"}


def write_acting_plots(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write acting.png: standing time, time to goal and success over the round trip, and return its path."""
    figure = new_figure(4.2, 12.0)
    axes = figure.subplots(1, 3)
    columns = (
        ("standing_s", "standing until the goal, s (median)"),
        ("to_goal_s", "time to goal, s (median)"),
        ("found", "rooms in which the object is found"),
    )
    for ax, (name, title) in zip(axes, columns, strict=True):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            for behaviour, dashes in DASHES.items():
                some = [row for row in rows if (row["mode"], row["behaviour"]) == (mode, behaviour)]
                if behaviour == "wait-action" or not some:
                    continue
                places = [row["rtt_ms"] for row in some]
                ax.plot(places, [row[name] for row in some], dashes, color=MODE_COLOURS[mode], marker="o", markersize=4,
                        label=f"{mode}, {behaviour}")  # fmt: skip
        ax.set_xlabel("round trip, ms")
        ax.set_title(title, fontsize=10)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
    axes[2].set_ylim(0, max(row["episodes"] for row in rows) * 1.04)
    axes[2].legend(fontsize=8, loc="lower left")
    path = folder / "acting.png"
    figure.savefig(path, dpi=110)
    return path
