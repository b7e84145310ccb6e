"""Plots of a scene for a person: from above with the oracle's path, the robot's views, what is seen in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure

from speculation.language.prompts import NavigationAction
from vlm_nav_simulation.camera import Image, Labels
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import EpisodeResult, oracle_policy, run_episode
from vlm_nav_simulation.ground_truth import Sighting, bearing_and_distance, observe, side_of
from vlm_nav_simulation.mujoco_scene import top_reach
from vlm_nav_simulation.randomisation import Randomisation
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

_PIXELS = 448
_STRIP = 8
_GRID = (3, 4)
_TINTS = ((0, 190, 255), (255, 120, 0), (190, 0, 255), (0, 220, 90), (255, 220, 0), (255, 60, 140), (110, 110, 255))


@dataclass(frozen=True)
class Views:
    """What the sheet shows: the views at the start, what is seen there, and the oracle's run with its frames."""

    first: Image
    labels: Labels
    sightings: tuple[Sighting, ...]
    third: Image
    top: Image
    frames: tuple[Image, ...]
    run: EpisodeResult


def look_at(scene: Scene, world_type: Callable[[Scene, int], World] = World) -> Views:
    """Render a scene's views and let the oracle walk through it."""
    with World(scene, _PIXELS) as world:
        labels = world.segmentation()
        first, third, top = world.render(), world.render_third_person(), world.render_top(720, 720)
        sightings = tuple(observe(world, labels))
    frames: list[Image] = []
    oracle = oracle_policy(scene)

    def watched(image: Image, world: World) -> NavigationAction | None:
        frames.append(image)
        return oracle(image, world)

    run = run_episode(scene, watched, world_type=world_type)
    return Views(first, labels, sightings, third, top, tuple(frames), run)


def describe(scene: Scene) -> str:
    """Return a scene as a table; distance (nose to surface) and bearing (to the left) are from the start."""
    lines = [
        f"{scene.layout.value} {scene.seed} ({scene.difficulty.name.lower()}): "
        f"{2 * scene.half_x:.1f} x {2 * scene.half_y:.1f} m, start at ({scene.start.x:.2f}, {scene.start.y:.2f})",
        f"  {'':15}{'x':>6}{'y':>8}{'height':>9}{'distance':>11}{'bearing':>9}  side",
    ]
    for item in scene.objects:
        bearing, distance = bearing_and_distance(scene.start, item)
        mark = "->" if item.index == scene.target_index else ""
        side = side_of(bearing).value if abs(bearing) < np.pi / 2 else "behind"
        lines.append(
            f"{mark:2}{item.target.text:15}{item.x:6.2f}{item.y:8.2f}{item.height:7.2f} m{distance:9.2f} m"
            f"{np.degrees(bearing):7.0f}°  {side}"
        )
    lines += [f"  {box.name:15}{box.x:6.2f}{box.y:8.2f}{box.height:7.2f} m" for box in scene.furniture]
    return "\n".join(lines)


def plot_sheet(scene: Scene, views: Views) -> Figure:
    """Return the contact sheet of a scene."""
    rows = (min(len(views.frames), _STRIP) + 3) // 4
    figure = Figure(figsize=(12, 12.4 + 3.1 * rows), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(12.0, 3.1 * rows))
    upper, lower = halves
    axes = upper.subplots(2, 2)
    _plot_top(axes[0, 0], scene, views)
    _show(axes[0, 1], views.third, "third person, at the start")
    _show(axes[1, 0], views.first, "the robot's first view")
    _plot_sightings(axes[1, 1], scene, views)
    for number, (step, frame) in enumerate(_strip(views.frames)):
        text = f"{step + 1}: {views.run.actions[step].text}"
        _show(lower.add_subplot(rows, 4, number + 1), frame, text, 10)
    outcome = f"{views.run.outcome.value}, {len(views.run.actions)} actions, {views.run.path_length:.1f} m"
    title = f"{scene.layout.value} {scene.seed}, {scene.difficulty.name.lower()}: find the {scene.target.text}"
    figure.suptitle(f"{title}  (oracle: {outcome})", fontsize=15)
    return figure


def _strip(frames: tuple[Image, ...]) -> list[tuple[int, Image]]:
    """Return at most eight frames with their numbers, evenly spread from first to last."""
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _STRIP)).round().astype(int))
    return [(int(i), frames[i]) for i in chosen]


def _show(axes: Any, image: Image, title: str, size: int = 12) -> None:
    axes.imshow(image)
    axes.set_title(title, fontsize=size)
    axes.set_xticks([])
    axes.set_yticks([])


def _plot_top(axes: Any, scene: Scene, views: Views) -> None:
    reach = top_reach(scene)
    axes.imshow(views.top, extent=(-reach, reach, -reach, reach))
    path = np.array([pose[:2] for pose in views.run.poses])
    axes.plot(path[:, 0], path[:, 1], color="#ff7f0e", linewidth=2.5, marker="o", markersize=4, label="oracle's path")
    axes.plot(*scene.start[:2], "s", color="#1f77ff", markersize=9, markeredgecolor="white", label="start")
    goal = scene.objects[scene.target_index]
    ring = {"markersize": 20, "markerfacecolor": "none", "markeredgecolor": "#e00000", "markeredgewidth": 2.5}
    axes.plot(goal.x, goal.y, "o", linestyle="none", label="target", **ring)
    for item in scene.objects:
        above = item.y < 0
        axes.annotate(item.target.text, (item.x, item.y), (0, 13 if above else -13), textcoords="offset points",
                      ha="center", va="bottom" if above else "top", fontsize=9, bbox=_BOX)  # fmt: skip
    half_x, half_y = scene.half_x + 0.3, scene.half_y + 0.3
    side = max(half_x, half_y)
    axes.set_xlim(-side, side)
    axes.set_ylim(-side, side)
    axes.set_facecolor("black")
    axes.set_title("from above (metres)", fontsize=12)
    axes.legend(loc="lower right", fontsize=9, framealpha=0.9, markerscale=0.5)


_BOX = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}


def _plot_sightings(axes: Any, scene: Scene, views: Views) -> None:
    seen = [sighting for sighting in views.sightings if sighting.visible]
    image = views.first.astype(float) * 0.45 + 70
    for sighting in seen:
        mask = views.labels == sighting.index
        image[mask] = 0.25 * views.first[mask] + 0.75 * np.array(_TINTS[sighting.index % len(_TINTS)])
    what = f"segmentation: {len(seen)} of {len(views.sightings)} objects visible"
    _show(axes, np.clip(image, 0, 255).astype(np.uint8), what)
    # labels in one column per side, beside each other's rows: they never cover one another
    rows = {True: 0, False: 0}
    for sighting in sorted(seen, key=lambda s: (s.box or (0, 0))[1]):
        left, top, right, _ = sighting.box or (0, 0, 0, 0)
        on_left = left + right < _PIXELS
        text = f"{sighting.colour} {sighting.object_class}\n{sighting.distance:.1f} m, {sighting.side.value}"
        if sighting.index == scene.target_index:
            text = f"target: {text}"
        spot = (8 if on_left else _PIXELS - 8, 12 + 48 * rows[on_left])
        rows[on_left] += 1
        axes.annotate(text, ((left + right) / 2, top), spot, ha="left" if on_left else "right", va="top", fontsize=10,
                      bbox=_BOX, arrowprops={"arrowstyle": "-", "color": "white", "linewidth": 1.4})  # fmt: skip


def plot_randomised(scene: Scene, randomisation: Randomisation) -> Figure:
    """Return a grid: the scene's view of its target as it is, then as training frames show it."""
    rng = np.random.default_rng([scene.seed, 0])
    goal = scene.objects[scene.target_index]
    yaw = float(np.arctan2(goal.y - scene.start.y, goal.x - scene.start.x))
    figure = Figure(figsize=(3 * _GRID[1], 3.25 * _GRID[0]), layout="constrained")
    for number in range(_GRID[0] * _GRID[1]):
        chosen = randomisation if number else Randomisation()
        with World(chosen.rescale(scene, rng), look=chosen.look(rng)) as world:
            world.set_pose(scene.start.x, scene.start.y, yaw)
            image, quality = chosen.sense(world.render(), rng), chosen.quality(rng)
        decoded = cv2.imdecode(np.frombuffer(encode_jpeg(image, quality), np.uint8), cv2.IMREAD_COLOR)
        if decoded is None:
            raise ValueError(f"a frame written as JPEG of quality {quality} does not decode")
        title = f"randomised, JPEG {quality}" if number else "as it is"
        _show(figure.add_subplot(*_GRID, number + 1), np.asarray(decoded[..., ::-1], np.uint8), title, 10)
    return figure
