"""Plots of closed-loop runs: success by mode, time to goal by mode and link; what faster answers do for a robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vlm_nav_evaluation.closed_loop.episodes import Episode, is_timed
from vlm_nav_evaluation.closed_loop.scores import Row, first_links, group, name_of, place_name, place_of
from vlm_nav_evaluation.plots import MODE_COLOURS, name_rows, new_figure, stacked_bars

COLOURS = {**MODE_COLOURS, "oracle": "#7f7f7f", "target": "#17324d", "draft": "#c7b09b"}
STANDING, MOVING = "#d9534f", "#5b8db8"
DASHES = {"wait": ":", "early": "--", "ahead": "-"}
"""Line styles by behaviour of `acting`."""


def write_plots(folder: Path, rows: Sequence[Row], episodes: Sequence[Episode], profile: str) -> list[Path]:
    """Write success.png and time_to_goal.png into `folder` and return their paths."""
    shown = {
        name: [row for row in first_links(rows) if place_name(place_of(row)) == name]
        for name in dict.fromkeys(place_name(place_of(row)) for row in rows)
    }
    plots = {"success": plot_success(shown), "time_to_goal": plot_times(episodes, profile)}
    for name, figure in plots.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    return [folder / f"{name}.png" for name in plots]


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
                places = [row["rtt_ms"] for row in some]
                if some:
                    ax.plot(places, [row[name] for row in some], dashes, color=MODE_COLOURS[mode], marker="o",
                            markersize=4, label=f"{mode}, {behaviour}")  # fmt: skip
        ax.set_xlabel("round trip, ms")
        ax.set_title(title, fontsize=10)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
    axes[2].set_ylim(0, max(row["episodes"] for row in rows) * 1.04)
    axes[2].legend(fontsize=8, loc="lower left")
    path = folder / "acting.png"
    figure.savefig(path, dpi=110)
    return path


def plot_success(shown: Mapping[str, Sequence[Row]]) -> Figure:
    """Return, per kind of room, success with its 95 % interval by policy."""
    figure, rows_of_axes = _stacked([0.5 * len(rows) + 1.0 for rows in shown.values()])
    for axes, (name, rows) in zip(rows_of_axes, shown.items(), strict=True):
        shares = [row["found"] / row["episodes"] for row in rows]
        ends = [[share - row["low"] for share, row in zip(shares, rows, strict=True)],
                [row["high"] - share for share, row in zip(shares, rows, strict=True)]]  # fmt: skip
        colours = [COLOURS[row["policy"]] for row in rows]
        axes.barh(range(len(rows)), shares, 0.65, color=colours, xerr=ends, capsize=4, error_kw={"lw": 1.2})
        for place, row in enumerate(rows):
            axes.text(1.03, place, f"{row['found']}/{row['episodes']}", va="center", fontsize=10)
        _titled(axes, f"{name}: found, with 95 % interval", [row["policy"] for row in rows])
        axes.set_xlim(0, 1.0)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def plot_times(episodes: Sequence[Episode], profile: str) -> Figure:
    """Return mean moving and standing time to the goal by policy and link, each over the rooms that it solves."""
    levels: dict[str, dict[str, list[Episode]]] = {}
    for (where, policy, rtt_ms), members in group(episodes).items():
        if is_timed(policy):
            solved = [episode for episode in members if episode.success]
            levels.setdefault(place_name(where), {})[f"{name_of(policy, rtt_ms)}  (n={len(solved)})"] = solved
    figure, rows = _stacked([0.5 * len(bars) + 1.3 for bars in levels.values()])
    for axes, (level, bars) in zip(rows, levels.items(), strict=True):
        moving = [mean([episode.moving_s for episode in solved] or [0.0]) for solved in bars.values()]
        standing = [mean([episode.standing_s or 0.0 for episode in solved] or [0.0]) for solved in bars.values()]
        parts = {"moving": (MOVING, moving), "standing, while an answer is decoded": (STANDING, standing)}
        stacked_bars(axes, range(len(bars)), parts)
        for place, solved in enumerate(bars.values()):
            if solved:
                whole = moving[place] + standing[place]
                axes.plot([each.total_s or 0.0 for each in solved], [place + 0.4] * len(solved), "k.", ms=4, alpha=0.6)
                axes.text(whole, place - 0.02, f" {whole:.1f} s", va="center", fontsize=10)
        _titled(axes, f"{level}: time to goal, in the rooms that each solves", list(bars))
        axes.set_xlim(left=0)
        axes.set_xlabel(f"seconds, profile {profile} (bars: mean; dots: episodes)")
    figure.legend(*rows[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _stacked(heights: Sequence[float]) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with axes of these heights, in inches, above one another."""
    figure = new_figure(sum(heights) + 0.4, 9.5)
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, list(grid[:, 0])


def _titled(axes: Axes, title: str, names: Sequence[str]) -> None:
    axes.set_title(title, fontsize=11)
    name_rows(axes, names)
    axes.spines[["top", "right"]].set_visible(False)
