"""Plots of a recorded run: where it walked, its frames with decisions, where the time of its answers went."""

from __future__ import annotations

import io
import math
import textwrap
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image, UnidentifiedImageError

from evaluation.report.run import HELD, Place, Run
from evaluation.report.timeline import COLOURS
from simulation.scene import Scene
from simulation.stage import top_reach
from simulation.world import World
from speculation.trace import Kind

TOP_PIXELS = 720
MOST_FRAMES = 40
COLUMNS = 5
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
    figure = Figure(figsize=(7.2, 7.2), layout="constrained")
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
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=11)
    return figure


def plot_frames(run: Run) -> Figure:
    """Return the decisions' frames with reasoning and action; evenly chosen ones of a long run."""
    shown = [decision for decision in run.decisions if decision.frame is not None]
    if len(shown) > MOST_FRAMES:
        shown = [shown[round(i)] for i in np.linspace(0, len(shown) - 1, MOST_FRAMES)]
    columns = max(1, min(COLUMNS, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(2.9 * columns, 4.0 * rows), layout="constrained")
    for index, decision in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        image = read_image(decision.frame)
        if image is not None:
            axes.imshow(image)
        axes.set_title(f"{decision.step}: {decision.action}", fontsize=12, fontweight="bold")
        axes.set_xlabel(textwrap.fill(decision.reasoning, 34, max_lines=6, placeholder=" ..."), fontsize=9.5)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def plot_latency(run: Run) -> Figure:
    """Return bars of the answers' times by stage: the edge's own above, the verifier's below (they overlap in time)."""
    decoded = [decision for decision in run.decisions if decision.stats is not None]
    places = range(len(decoded))
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    both = figure.subplots(2, 1, sharex=True, sharey=True)
    totals = [1e3 * decision.stats.total_s for decision in decoded]
    for axes, (title, stages) in zip(both, STAGES.items(), strict=True):
        bottom = np.zeros(len(decoded))
        for name, (label, colour) in stages.items():
            heights = np.array([1e3 * getattr(decision.stats, name) for decision in decoded])
            axes.bar(places, heights, bottom=bottom, label=label, color=colour, width=0.8)
            bottom += heights
        if axes is both[0]:
            axes.plot(places, totals, "k_", markersize=9, label="whole answer")
        axes.set_ylabel(f"{title}, ms", fontsize=11)
        axes.grid(axis="y", color="#e5e7eb", zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=9, ncols=5, loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(24, integer=True))
    names = {place: str(decision.step) for place, decision in enumerate(decoded)}
    axes.xaxis.set_major_formatter(lambda at, _: names.get(at, ""))
    axes.set_xlabel("step")
    return figure


def read_image(frame: bytes | None) -> Image.Image | None:
    """Return a camera frame in RGB; None where it does not decode."""
    try:
        return Image.open(io.BytesIO(frame or b"")).convert("RGB")
    except (UnidentifiedImageError, OSError):
        return None


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
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_axis_off()


def _grid(axes: Axes, path: list[Place]) -> None:
    places = np.array([place[1:3] for place in path] or [(0.0, 0.0)])
    low, high = places.min(axis=0), places.max(axis=0)
    half = max(1.0, float((high - low).max()) / 2) + 0.5
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.grid(color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.set_xlabel("x, m (odometry)")
    axes.set_ylabel("y, m")


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
        look: dict[str, Any] = {
            "fontsize": 11,
            "fontweight": "bold",
            "ha": "center",
            "va": "center",
            "path_effects": _HALO,
        }
        axes.annotate(text, place[1:3], aside, textcoords="offset points", zorder=7, **look)
    if spots:
        axes.plot([], [], ">", color=BODY, markersize=7, label="decision, by step")


def _arrow(axes: Axes, place: Place, colour: str, length: float, zorder: float) -> None:
    ahead = place.x + length * math.cos(place.yaw), place.y + length * math.sin(place.yaw)
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", ahead, place[1:3], arrowprops={**look, "path_effects": _HALO}, zorder=zorder)
