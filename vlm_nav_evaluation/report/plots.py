"""Plots of a recorded run: where it walked, and where the time of its answers went."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from speculation.trace import Kind
from vlm_nav_evaluation.plots import new_figure, plain
from vlm_nav_evaluation.report.run import HELD, Place, Run
from vlm_nav_evaluation.report.timeline import COLOURS
from vlm_nav_simulation.mujoco_scene import top_reach
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

TOP_PIXELS = 720
STAGES = {
    "edge": {
        "prefill_s": ("prefill", COLOURS[Kind.PREFILL]),
        "draft_s": ("draft", COLOURS[Kind.DRAFT]),
        "predraft_s": ("pre-draft", COLOURS[Kind.PREDRAFT]),
        "wait_s": ("wait for the link", "#dfe4ea"),
    },
    "verifier": {
        "server_prefill_s": ("prefill", COLOURS[Kind.PREFILL]),
        "server_compute_s": ("verify", COLOURS[Kind.VERIFY]),
        "server_queue_s": ("queue", COLOURS[Kind.QUEUE]),
    },
}
PATH, START, TARGET, STANDING, BODY = "#ff8c00", "#1d4ed8", "#dc2626", "#6b7280", "#111827"
_SAME_SPOT_M = 0.12
_HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]


def plot_top(run: Run, scene: Scene | None) -> Figure:
    """Return the run from above, in metres: in its simulated room, or on a grid where the room is not known."""
    figure = new_figure(7.2, 7.2)
    axes = figure.add_subplot()
    ring: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "none", "markeredgewidth": 2.5}
    if scene is None:
        _grid(axes, run.path)
    else:
        _room(axes, run.path, scene)
        goal = scene.objects[scene.target_index]
        axes.plot(goal.x, goal.y, color=TARGET, markersize=24, label=f"target: {goal.target.text}", **ring)
    if run.path:
        _, xs, ys, _ = zip(*run.path, strict=True)
        if len(xs) > 1:
            axes.plot(xs, ys, color=PATH, linewidth=3, solid_capstyle="round", label="path", zorder=3)
        axes.plot(xs[0], ys[0], color=START, markersize=11, label="start", **ring)
        if scene is None:
            _arrow(axes, run.path[-1], BODY, 0.3, zorder=6)
            axes.plot([], [], ">", color=BODY, markersize=10, label="end")
    _decisions(axes, run)
    axes.set_aspect("equal")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=11)
    else:
        axes.set_title("no odometry was recorded", fontsize=11)
    return figure


def plot_latency(run: Run) -> Figure:
    """Return bars of the answers' times by stage: the edge's own above, the verifier's below (they overlap in time)."""
    decoded = [decision for decision in run.decisions if decision.stats is not None]
    places = range(len(decoded))
    figure = new_figure(5.6, 10)
    both = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, (title, stages) in zip(both, STAGES.items(), strict=True):
        ends = np.zeros(len(decoded))
        for name, (label, colour) in stages.items():
            values = np.array([1e3 * getattr(decision.stats, name) for decision in decoded])
            axes.bar(places, values, 0.8, ends, color=colour, label=label)
            ends += values
        axes.set_ylabel(f"{title}, ms", fontsize=11)
        plain(axes)
    both[0].plot(places, [1e3 * each.stats.total_s for each in decoded], "k_", markersize=9, label="whole answer")
    for axes in both:
        axes.legend(fontsize=9, ncols=5, loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(24, integer=True))
    names = {place: str(decision.step) for place, decision in enumerate(decoded)}
    axes.xaxis.set_major_formatter(lambda at, _: names.get(at, ""))
    axes.set_xlabel("step")
    return figure


def _room(axes: Axes, path: list[Place], scene: Scene) -> None:
    with World(scene) as world:
        if path:
            world.set_pose(*path[-1][1:])
        seen = world.render_top(TOP_PIXELS, TOP_PIXELS)
    reach = top_reach(scene)
    axes.imshow(seen, extent=(-reach, reach, -reach, reach))
    left, low = -0.96 * reach, -0.95 * reach
    axes.plot([left, left + 1.0], [low, low], color="white", linewidth=4, solid_capstyle="butt")
    axes.text(left + 0.5, low + 0.02 * reach, "1 m", color="white", ha="center", va="bottom", fontsize=11)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    axes.set_axis_off()


def _grid(axes: Axes, path: list[Place]) -> None:
    places = np.array([place[1:3] for place in path] or [(0.0, 0.0)])
    low, high = places.min(axis=0), places.max(axis=0)
    half = max(1.0, float((high - low).max()) / 2) + 0.5
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel="x, m (odometry)", ylabel="y, m")
    axes.grid(color="#e5e7eb")
    axes.set_axisbelow(True)


def _decisions(axes: Axes, run: Run) -> None:
    """An arrow for every decision; those made in one spot share a label such as 3-6."""
    spots: list[tuple[Place, list[int]]] = []
    for decision in run.decisions:
        place = decision.place
        if place is None:
            continue
        _arrow(axes, place, STANDING if decision.action == HELD else BODY, 0.16, zorder=5)
        if not spots or math.dist(spots[-1][0][1:3], place[1:3]) >= _SAME_SPOT_M:
            spots.append((place, []))
        spots[-1][1].append(decision.step)
    for place, numbers in spots:
        text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        # To the robot's right, where neither its path nor its arrow is.
        aside = (11 + 4 * len(text)) * math.sin(place.yaw), -13 * math.cos(place.yaw)
        axes.annotate(text, place[1:3], aside, textcoords="offset points", zorder=7, fontsize=11, fontweight="bold",
                      ha="center", va="center", path_effects=_HALO)  # fmt: skip
    if spots:
        axes.plot([], [], ">", color=BODY, markersize=7, label="decision, by step")


def _arrow(axes: Axes, place: Place, colour: str, length: float, zorder: float) -> None:
    ahead = place.x + length * math.cos(place.yaw), place.y + length * math.sin(place.yaw)
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", ahead, place[1:3], arrowprops={**look, "path_effects": _HALO}, zorder=zorder)
