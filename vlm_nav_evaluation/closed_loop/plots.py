"""Plots of closed-loop runs: success by object and mode, time to goal by mode and link, how episodes ended.

Of `acting`: what a faster answer does for the robot, by what the robot does with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vlm_nav_evaluation.closed_loop.episodes import Episode, is_timed
from vlm_nav_evaluation.closed_loop.scores import Row, first_links, found_of_asked, group, name_of, place_name, place_of
from vlm_nav_evaluation.plots import MODE_COLOURS, heat_map, name_rows, new_figure, stacked_bars
from vlm_nav_simulation.episode import Outcome

COLOURS = {**MODE_COLOURS, "oracle": "#7f7f7f", "target": "#17324d", "draft": "#c7b09b"}
OUTCOME_COLOURS = {
    Outcome.FOUND.value: "#2ca02c",
    Outcome.STOPPED_AWAY.value: "#d62728",
    Outcome.OUT_OF_ACTIONS.value: "#ffbb55",
    Outcome.NO_ACTION.value: "#9e9e9e",
    Outcome.NOT_FOUND.value: "#9467bd",
    Outcome.BLOCKED.value: "#8c564b",
}
SHARES = LinearSegmentedColormap.from_list("shares", ["#f2a39b", "#fff4c2", "#9fd6a0"])
STANDING, MOVING = "#d9534f", "#5b8db8"
DASHES = {"wait": ":", "wait-action": "-.", "early": "--", "ahead": "-"}
"""Of the behaviours of `acting`."""


def write_plots(folder: Path, rows: Sequence[Row], episodes: Sequence[Episode], profile: str) -> list[Path]:
    """Write success.png, time_to_goal.png and outcomes.png into `folder` and return their paths."""
    shown = {
        name: [row for row in first_links(rows) if place_name(place_of(row)) == name]
        for name in dict.fromkeys(place_name(place_of(row)) for row in rows)
    }
    plots = {
        "success": plot_success(shown),
        "time_to_goal": plot_times(episodes, profile),
        "outcomes": plot_outcomes(shown),
    }
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


def plot_success(shown: Mapping[str, Sequence[Row]]) -> Figure:
    """Return, per difficulty, success with its 95 % interval by policy, and found/asked by object class."""
    classes = {level: sorted({name for row in rows for name in row["by_class"]}) for level, rows in shown.items()}
    policies = max(len(rows) for rows in shown.values())
    heights = [max(0.5 * policies, 0.42 * len(names)) + 1.2 for names in classes.values()]
    widths = (5.5, 0.95 * policies)
    figure = new_figure(sum(heights), sum(widths) + 1.2)
    ratios = {"width_ratios": widths, "height_ratios": heights}
    grid = figure.subplots(len(shown), 2, squeeze=False, gridspec_kw=ratios)
    for (bars, table), (level, rows) in zip(grid, shown.items(), strict=True):
        names = [row["policy"] for row in rows]
        shares = [row["found"] / row["episodes"] for row in rows]
        ends = [[share - row["low"] for share, row in zip(shares, rows, strict=True)],
                [row["high"] - share for share, row in zip(shares, rows, strict=True)]]  # fmt: skip
        colours = [COLOURS[name] for name in names]
        bars.barh(range(len(rows)), shares, 0.65, color=colours, xerr=ends, capsize=4, error_kw={"lw": 1.2})
        for place, row in enumerate(rows):
            bars.text(1.03, place, f"{row['found']}/{row['episodes']}", va="center", fontsize=10)
        _titled(bars, f"{level}: found, with 95 % interval", names)
        bars.set_xlim(0, 1.0)
        bars.xaxis.set_major_formatter(PercentFormatter(1.0))
        counts = [[row["by_class"].get(name, (0, 0)) for row in rows] for name in classes[level]]
        parts = [[found / asked if asked else float("nan") for found, asked in line] for line in counts]
        heat_map(table, parts, [[found_of_asked(row, name) for row in rows] for name in classes[level]], SHARES)
        table.set_xticks(range(len(rows)), names)
        table.set_yticks(range(len(classes[level])), classes[level])
        table.set_title("found / asked, by object", fontsize=11)
        table.tick_params(length=0)
        table.spines[:].set_visible(False)
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


def plot_outcomes(shown: Mapping[str, Sequence[Row]]) -> Figure:
    """Return, per difficulty, how the episodes of every policy ended."""
    figure, rows_of_axes = _stacked([0.5 * len(rows) + 1.0 for rows in shown.values()])
    used = {outcome for rows in shown.values() for row in rows for outcome in row["outcomes"]}
    for axes, (level, rows) in zip(rows_of_axes, shown.items(), strict=True):
        parts = {
            name: (colour, [row["outcomes"].get(name, 0) for row in rows])
            for name, colour in OUTCOME_COLOURS.items()
            if name in used
        }
        for bars in stacked_bars(axes, range(len(rows)), parts):
            axes.bar_label(bars, [f"{width:.0f}" if (width := bar.get_width()) else "" for bar in bars],
                           label_type="center", fontsize=10)  # fmt: skip
        _titled(axes, f"{level}: how the episodes ended", [row["policy"] for row in rows])
        axes.set_xlabel("episodes")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(*rows_of_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
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
