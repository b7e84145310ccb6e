"""Pictures of a recorded run: where it walked, what it saw and said, where the time of its answers went."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import cv2
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.recorded import HELD, Place, Recorded, Run
from evaluation.timeline import COLOURS
from simulation.scene import Scene
from simulation.stage import top_reach
from simulation.world import World
from speculation.trace import Kind

TOP_PIXELS = 720
MOST_IN_SHEET = 40
EDGE_STAGES = {
    "prefill_s": ("prefill", COLOURS[Kind.PREFILL]),
    "draft_s": ("draft", COLOURS[Kind.DRAFT]),
    "predraft_s": ("pre-draft", COLOURS[Kind.PREDRAFT]),
    "wait_s": ("wait for the link", "#dfe4ea"),
}
CLOUD_STAGES = {
    "server_prefill_s": ("prefill", COLOURS[Kind.PREFILL]),
    "server_compute_s": ("verify", COLOURS[Kind.VERIFY]),
    "server_queue_s": ("queue", COLOURS[Kind.QUEUE]),
}
PATH, START, TARGET, STANDING = "#ff8c00", "#1d4ed8", "#dc2626", "#6b7280"
_SAME_SPOT_M = 0.12
_HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]


def draw_top(run: Run, scene: Scene | None) -> Figure:
    """Return the run from above, in metres: in its simulated room, or on a grid where the room is not known."""
    figure = Figure(figsize=(7.2, 7.2), layout="constrained")
    axes = figure.add_subplot()
    if scene is None:
        _draw_grid(axes, run.path)
    else:
        _draw_room(axes, run.path, scene)
    if len(run.path) > 1:
        xy = np.array([place[1:3] for place in run.path])
        axes.plot(xy[:, 0], xy[:, 1], color=PATH, linewidth=3, solid_capstyle="round", label="path", zorder=3)
    if run.path:
        first, last = run.path[0], run.path[-1]
        axes.plot(
            *first[1:3], "o", color=START, markersize=11, markerfacecolor="none", markeredgewidth=2.5, label="start"
        )
        if scene is None:
            _draw_arrow(axes, last, "#111827", 0.3, zorder=6)
            axes.plot([], [], ">", color="#111827", markersize=10, label="end")
    _draw_decisions(axes, run.decisions)
    axes.set_aspect("equal")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=11)
    return figure


def draw_contact_sheet(run: Run, columns: int = 5) -> Figure:
    """Return the decisions' frames with what the model said and did; evenly chosen ones of a long run."""
    shown = [decision for decision in run.decisions if decision.frame is not None]
    if len(shown) > MOST_IN_SHEET:
        shown = [shown[round(i)] for i in np.linspace(0, len(shown) - 1, MOST_IN_SHEET)]
    columns = max(1, min(columns, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(2.9 * columns, 4.0 * rows), layout="constrained")
    for index, decision in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        data = cv2.imdecode(np.frombuffer(decision.frame or b"", np.uint8), cv2.IMREAD_COLOR)
        if data is not None:
            axes.imshow(cv2.cvtColor(data, cv2.COLOR_BGR2RGB))
        axes.set_title(f"{decision.step}: {decision.action}", fontsize=12, fontweight="bold")
        axes.set_xlabel(textwrap.fill(decision.reasoning, 34, max_lines=6, placeholder=" ..."), fontsize=9.5)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def draw_latency(run: Run) -> Figure:
    """Return bars of the answers' times by stage: the edge's own above, the verifier's below (they overlap in time)."""
    decoded = [decision for decision in run.decisions if decision.stats is not None]
    places = range(len(decoded))
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, stages, title in ((upper, EDGE_STAGES, "edge"), (lower, CLOUD_STAGES, "verifier")):
        bottom = np.zeros(len(decoded))
        for name, (label, colour) in stages.items():
            heights = np.array([1e3 * getattr(decision.stats, name) for decision in decoded])
            axes.bar(places, heights, bottom=bottom, label=label, color=colour, width=0.8)
            bottom += heights
        axes.set_ylabel(f"{title}, ms", fontsize=11)
        axes.grid(axis="y", color="#e5e7eb", zorder=0)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    upper.plot(places, [1e3 * decision.stats.total_s for decision in decoded], "k_", markersize=9, label="whole answer")
    for axes in (upper, lower):
        axes.legend(fontsize=9, ncols=5, loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)
    lower.xaxis.set_major_locator(MaxNLocator(24, integer=True))
    names = [str(decision.step) for decision in decoded]
    lower.xaxis.set_major_formatter(lambda at, _: names[int(at)] if 0 <= at < len(names) and at == int(at) else "")
    lower.set_xlabel("step")
    return figure


def _draw_room(axes: Axes, path: Sequence[Place], scene: Scene) -> None:
    with World(scene) as world:
        if path:
            world.set_pose(*path[-1][1:])
        picture = world.render_top(TOP_PIXELS, TOP_PIXELS)
    reach = top_reach(scene)
    axes.imshow(picture, extent=(-reach, reach, -reach, reach))
    goal = scene.objects[scene.target_index]
    axes.plot(
        goal.x, goal.y, "o", color=TARGET, markersize=24, markerfacecolor="none", markeredgewidth=2.5,
        label=f"target: {goal.target.text}",
    )  # fmt: skip
    left, low = -0.96 * reach, -0.95 * reach
    axes.plot([left, left + 1.0], [low, low], color="white", linewidth=4, solid_capstyle="butt")
    axes.text(left + 0.5, low + 0.02 * reach, "1 m", color="white", ha="center", va="bottom", fontsize=11)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_axis_off()


def _draw_grid(axes: Axes, path: Sequence[Place]) -> None:
    xs, ys = ([place[i] for place in path] or [0.0] for i in (1, 2))
    half = max(1.0, (max(xs) - min(xs)) / 2, (max(ys) - min(ys)) / 2) + 0.5
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.grid(color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.set_xlabel("x, m (odometry)")
    axes.set_ylabel("y, m")


def _draw_decisions(axes: Axes, decisions: Sequence[Recorded]) -> None:
    """An arrow for every decision; those made in one spot share a label such as 3-6."""
    spots: list[tuple[Place, list[int]]] = []
    for decision in decisions:
        place = decision.place
        if place is None:
            continue
        _draw_arrow(axes, place, STANDING if decision.action == HELD else "#111827", 0.16, zorder=5)
        near = spots and math.dist(spots[-1][0][1:3], place[1:3]) < _SAME_SPOT_M
        if near:
            spots[-1][1].append(decision.step)
        else:
            spots.append((place, [decision.step]))
    for place, numbers in spots:
        text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        # To the robot's right, where neither its path nor its arrow is.
        aside = (11 + 4 * len(text)) * math.sin(place.yaw), -13 * math.cos(place.yaw)
        axes.annotate(
            text, place[1:3], aside, textcoords="offset points", ha="center", va="center", fontsize=11,
            fontweight="bold", path_effects=_HALO, zorder=7,
        )  # fmt: skip
    if spots:
        axes.plot([], [], ">", color="#111827", markersize=7, label="decision, by step")


def _draw_arrow(axes: Axes, place: Place, colour: str, length: float, zorder: float) -> None:
    ahead = place.x + length * math.cos(place.yaw), place.y + length * math.sin(place.yaw)
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", ahead, place[1:3], arrowprops={**look, "path_effects": _HALO}, zorder=zorder)
