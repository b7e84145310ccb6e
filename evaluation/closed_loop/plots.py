"""Pictures of closed-loop runs: success by object and mode, time to goal by mode and link, how episodes ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

from evaluation.closed_loop.episodes import Episode
from evaluation.closed_loop.scores import Figures, first_links, group, name_of
from evaluation.replay_plots import MODE_COLOURS
from simulation.episode import Outcome

matplotlib.use("Agg")
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

COLOURS = {**MODE_COLOURS, "oracle": "#7f7f7f", "target": "#17324d", "draft": "#c7b09b"}
OUTCOME_COLOURS = {
    Outcome.FOUND.value: "#2ca02c",
    Outcome.STOPPED_AWAY.value: "#d62728",
    Outcome.OUT_OF_ACTIONS.value: "#ffbb55",
    Outcome.NO_ACTION.value: "#9e9e9e",
}
SHARES = LinearSegmentedColormap.from_list("shares", ["#f2a39b", "#fff4c2", "#9fd6a0"])
STANDING, MOVING = "#d9534f", "#5b8db8"
DPI = 110


def draw(folder: Path, rows: Sequence[Figures], episodes: Sequence[Episode], profile: str) -> list[Path]:
    """Write success.png, time_to_goal.png and outcomes.png into `folder` and return their paths."""
    pictures = {
        "success.png": draw_success(rows),
        "time_to_goal.png": draw_times(episodes, profile),
        "outcomes.png": draw_outcomes(rows),
    }
    paths = []
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=DPI, bbox_inches="tight")
        paths.append(folder / name)
    return paths


def draw_success(rows: Sequence[Figures]) -> Figure:
    """Return, per difficulty, success with its 95 % interval by policy, and found/asked by object class."""
    levels = _levels(rows)
    shown = {level: [row for row in first_links(rows) if row.difficulty == level] for level in levels}
    classes = {level: sorted({name for row in shown[level] for name in row.by_class}) for level in levels}
    policies = max(len(entries) for entries in shown.values())
    heights = [max(0.5 * policies, 0.42 * len(classes[level])) + 1.2 for level in levels]
    figure = Figure(figsize=(5.5 + 1.2 + 0.95 * policies, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(levels), 2, width_ratios=(5.5, 0.95 * policies), height_ratios=heights)
    for index, level in enumerate(levels):
        _bars(figure.add_subplot(grid[index, 0]), level, shown[level])
        _by_class(figure.add_subplot(grid[index, 1]), classes[level], shown[level])
    return figure


def _bars(axes: Any, level: str, rows: Sequence[Figures]) -> None:
    for place, row in enumerate(rows):
        share = row.found / row.episodes
        axes.barh(place, share, color=COLOURS[row.policy], height=0.65)
        axes.errorbar(share, place, xerr=[[share - row.low], [row.high - share]], color="black", capsize=4, lw=1.2)
        axes.text(1.03, place, f"{row.found}/{row.episodes}", va="center", fontsize=10)
    axes.set_yticks(range(len(rows)), [row.policy for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.0)
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.set_title(f"{level}: found, with 95 % interval", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def _by_class(axes: Any, classes: Sequence[str], rows: Sequence[Figures]) -> None:
    shares = [[_share(row.by_class.get(name, (0, 0))) for row in rows] for name in classes]
    axes.imshow(shares, cmap=SHARES, vmin=0.0, vmax=1.0, aspect="auto")
    for line, name in enumerate(classes):
        for column, row in enumerate(rows):
            found, asked = row.by_class.get(name, (0, 0))
            axes.text(column, line, f"{found}/{asked}" if asked else "-", ha="center", va="center", fontsize=10)
    axes.set_xticks(range(len(rows)), [row.policy for row in rows])
    axes.set_yticks(range(len(classes)), classes)
    axes.set_title("found / asked, by object", fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_times(episodes: Sequence[Episode], profile: str) -> Figure:
    """Return mean moving and standing time to the goal by policy and link, each over the rooms that it solves."""
    timed = {key: members for key, members in group(episodes).items() if key[1].timed}
    levels = list(dict.fromkeys(key[0] for key in timed))
    counts = [sum(key[0] == level for key in timed) for level in levels]
    figure = Figure(figsize=(9.5, sum(0.5 * count + 1.3 for count in counts)), layout="constrained")
    grid = figure.add_gridspec(len(levels), 1, height_ratios=[0.5 * count + 1.3 for count in counts])
    for index, level in enumerate(levels):
        some = {key: members for key, members in timed.items() if key[0] == level}
        solved = [[episode for episode in members if episode.success] for members in some.values()]
        axes = figure.add_subplot(grid[index, 0])
        axes.set_title(f"{level}: time to goal, in the rooms that each solves", fontsize=11)
        names = [f"{name_of(key[1].value, key[2])}  (n={len(found)})" for key, found in zip(some, solved, strict=True)]
        for place, found in enumerate(solved):
            _time_bar(axes, place, found)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"seconds, profile {profile} (bars: mean; dots: episodes)")
        axes.spines[["top", "right"]].set_visible(False)
    bars = [Patch(color=MOVING, label="moving"), Patch(color=STANDING, label="standing, while an answer is decoded")]
    figure.legend(handles=bars, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _time_bar(axes: Any, place: int, episodes: Sequence[Episode]) -> None:
    if not episodes:
        return
    moving = mean(episode.moving_s for episode in episodes)
    standing = mean(episode.standing_s or 0.0 for episode in episodes)
    axes.barh(place, moving, color=MOVING, height=0.65)
    axes.barh(place, standing, left=moving, color=STANDING, height=0.65)
    totals = [episode.total_s or 0.0 for episode in episodes]
    axes.plot(totals, [place + 0.4] * len(totals), "k.", markersize=4, alpha=0.6)
    axes.text(moving + standing, place - 0.02, f" {moving + standing:.1f} s", va="center", fontsize=10)


def draw_outcomes(rows: Sequence[Figures]) -> Figure:
    """Return, per difficulty, how the episodes of every policy ended."""
    levels = _levels(rows)
    shown = {level: [row for row in first_links(rows) if row.difficulty == level] for level in levels}
    heights = [0.5 * len(shown[level]) + 1.0 for level in levels]
    figure = Figure(figsize=(9.5, sum(heights) + 0.4), layout="constrained")
    grid = figure.add_gridspec(len(levels), 1, height_ratios=heights)
    used: dict[str, Any] = {}
    for index, level in enumerate(levels):
        axes = figure.add_subplot(grid[index, 0])
        left: dict[int, int] = defaultdict(int)
        for outcome, colour in OUTCOME_COLOURS.items():
            for place, row in enumerate(shown[level]):
                count = row.outcomes.get(outcome, 0)
                if count:
                    used[outcome] = axes.barh(place, count, left=left[place], color=colour, height=0.65)
                    axes.text(left[place] + count / 2, place, str(count), ha="center", va="center", fontsize=10)
                left[place] += count
        axes.set_yticks(range(len(shown[level])), [row.policy for row in shown[level]])
        axes.invert_yaxis()
        axes.set_title(f"{level}: how the episodes ended", fontsize=11)
        axes.set_xlabel("episodes")
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(used.values(), used.keys(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _levels(rows: Sequence[Figures]) -> list[str]:
    return list(dict.fromkeys(row.difficulty for row in rows))


def _share(counts: tuple[int, int]) -> float:
    found, asked = counts
    return found / asked if asked else float("nan")
