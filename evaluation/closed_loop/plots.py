"""Plots of closed-loop runs: success by object and mode, time to goal by mode and link, how episodes ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from evaluation.closed_loop.episodes import Episode, is_timed
from evaluation.closed_loop.scores import Figures, first_links, found_of_asked, group, name_of
from evaluation.plots import MODE_COLOURS
from simulation.episode import Outcome

COLOURS = {**MODE_COLOURS, "oracle": "#7f7f7f", "target": "#17324d", "draft": "#c7b09b"}
OUTCOME_COLOURS = {
    Outcome.FOUND.value: "#2ca02c",
    Outcome.STOPPED_AWAY.value: "#d62728",
    Outcome.OUT_OF_ACTIONS.value: "#ffbb55",
    Outcome.NO_ACTION.value: "#9e9e9e",
}
SHARES = LinearSegmentedColormap.from_list("shares", ["#f2a39b", "#fff4c2", "#9fd6a0"])
STANDING, MOVING = "#d9534f", "#5b8db8"


def write_plots(folder: Path, rows: Sequence[Figures], episodes: Sequence[Episode], profile: str) -> list[Path]:
    """Write success.png, time_to_goal.png and outcomes.png into `folder` and return their paths."""
    shown = {
        level: [row for row in first_links(rows) if row.difficulty == level]
        for level in dict.fromkeys(row.difficulty for row in rows)
    }
    plots = {
        "success": plot_success(shown),
        "time_to_goal": plot_times(episodes, profile),
        "outcomes": plot_outcomes(shown),
    }
    for name, figure in plots.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    return [folder / f"{name}.png" for name in plots]


def plot_success(shown: Mapping[str, Sequence[Figures]]) -> Figure:
    """Return, per difficulty, success with its 95 % interval by policy, and found/asked by object class."""
    classes = {level: sorted({name for row in rows for name in row.by_class}) for level, rows in shown.items()}
    policies = max(len(rows) for rows in shown.values())
    heights = [max(0.5 * policies, 0.42 * len(names)) + 1.2 for names in classes.values()]
    widths = (5.5, 0.95 * policies)
    figure = Figure(figsize=(sum(widths) + 1.2, sum(heights)), layout="constrained")
    ratios = {"width_ratios": widths, "height_ratios": heights}
    grid = figure.subplots(len(shown), 2, squeeze=False, gridspec_kw=ratios)
    for (bars, table), (level, rows) in zip(grid, shown.items(), strict=True):
        for place, row in enumerate(rows):
            share = row.found / row.episodes
            bars.barh(place, share, color=COLOURS[row.policy], height=0.65)
            bars.errorbar(share, place, xerr=[[share - row.low], [row.high - share]], color="black", capsize=4, lw=1.2)
            bars.text(1.03, place, f"{row.found}/{row.episodes}", va="center", fontsize=10)
        _name_rows(bars, f"{level}: found, with 95 % interval", [row.policy for row in rows])
        bars.set_xlim(0, 1.0)
        bars.xaxis.set_major_formatter(PercentFormatter(1.0))
        _by_class(table, classes[level], rows)
    return figure


def _by_class(axes: Axes, classes: Sequence[str], rows: Sequence[Figures]) -> None:
    counts = [[row.by_class.get(name, (0, 0)) for row in rows] for name in classes]
    shares = [[found / asked if asked else float("nan") for found, asked in line] for line in counts]
    axes.imshow(shares, cmap=SHARES, vmin=0.0, vmax=1.0, aspect="auto")
    for line, name in enumerate(classes):
        for column, row in enumerate(rows):
            axes.text(column, line, found_of_asked(row, name), ha="center", va="center", fontsize=10)
    axes.set_xticks(range(len(rows)), [row.policy for row in rows])
    axes.set_yticks(range(len(classes)), classes)
    axes.set_title("found / asked, by object", fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def plot_times(episodes: Sequence[Episode], profile: str) -> Figure:
    """Return mean moving and standing time to the goal by policy and link, each over the rooms that it solves."""
    levels: dict[str, dict[str, list[Episode]]] = {}
    for (level, policy, rtt_ms), members in group(episodes).items():
        if is_timed(policy):
            solved = [episode for episode in members if episode.success]
            levels.setdefault(level, {})[f"{name_of(policy, rtt_ms)}  (n={len(solved)})"] = solved
    figure, rows = _stacked([0.5 * len(bars) + 1.3 for bars in levels.values()])
    for axes, (level, bars) in zip(rows, levels.items(), strict=True):
        for place, solved in enumerate(bars.values()):
            if not solved:
                continue
            moving = mean(episode.moving_s for episode in solved)
            standing = mean(episode.standing_s or 0.0 for episode in solved)
            axes.barh(place, moving, color=MOVING, height=0.65)
            axes.barh(place, standing, left=moving, color=STANDING, height=0.65)
            totals = [episode.total_s or 0.0 for episode in solved]
            axes.plot(totals, [place + 0.4] * len(totals), "k.", markersize=4, alpha=0.6)
            axes.text(moving + standing, place - 0.02, f" {moving + standing:.1f} s", va="center", fontsize=10)
        _name_rows(axes, f"{level}: time to goal, in the rooms that each solves", list(bars))
        axes.set_xlim(left=0)
        axes.set_xlabel(f"seconds, profile {profile} (bars: mean; dots: episodes)")
    handles = [Patch(color=MOVING, label="moving"), Patch(color=STANDING, label="standing, while an answer is decoded")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def plot_outcomes(shown: Mapping[str, Sequence[Figures]]) -> Figure:
    """Return, per difficulty, how the episodes of every policy ended."""
    figure, rows_of_axes = _stacked([0.5 * len(rows) + 1.0 for rows in shown.values()])
    used = {outcome for rows in shown.values() for row in rows for outcome in row.outcomes}
    for axes, (level, rows) in zip(rows_of_axes, shown.items(), strict=True):
        for place, row in enumerate(rows):
            left = 0
            for outcome, colour in OUTCOME_COLOURS.items():
                count = row.outcomes.get(outcome, 0)
                if count:
                    axes.barh(place, count, left=left, color=colour, height=0.65)
                    axes.text(left + count / 2, place, str(count), ha="center", va="center", fontsize=10)
                    left += count
        _name_rows(axes, f"{level}: how the episodes ended", [row.policy for row in rows])
        axes.set_xlabel("episodes")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [Patch(color=colour, label=name) for name, colour in OUTCOME_COLOURS.items() if name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _stacked(heights: Sequence[float]) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with axes of these heights, in inches, above one another."""
    figure = Figure(figsize=(9.5, sum(heights) + 0.4), layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, list(grid[:, 0])


def _name_rows(axes: Axes, title: str, names: Sequence[str]) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
