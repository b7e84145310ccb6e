"""`closed-loop`: does a model find what the robot is asked to find, and how well does it walk?

Episodes run in the kinematic simulator, without ROS, link or clock: all exact modes give the target's answers. The
oracle walks every room too. What modes and links do to the robot's time is measured by `acting`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product, starmap
from pathlib import Path
from typing import Any

from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, Vocabulary
from speculation.vlm.folder import ModelFolderError, find_model
from speculation.vlm.load import folder_fingerprint
from vlm_nav_evaluation.closed_loop.camera_views import Crop
from vlm_nav_evaluation.closed_loop.episodes import (
    MODELS,
    ORACLE,
    TARGET,
    Episode,
    EpisodeKey,
    Setting,
    walk,
)
from vlm_nav_evaluation.closed_loop.scores import (
    LAYOUTS,
    LEVELS,
    PLACED_COLUMNS,
    camera_name,
    camera_tables,
    figures,
    main_table,
    outcome_table,
    place_name,
    place_of,
    placed,
)
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import (
    add_edge_flags,
    add_pair,
    add_prompt_options,
    add_resumable_out,
    add_views,
    numbers,
    seeds,
    several,
)
from vlm_nav_evaluation.results import commit, machine, write_json
from vlm_nav_evaluation.search_prompts import Asking
from vlm_nav_evaluation.tables import figures_table
from vlm_nav_simulation.geometry import GO2_MOUNT, CameraMount

RANDOM = "random"


def add_walks(line: argparse.ArgumentParser, rooms: str, out: str) -> None:
    """Register what commands share that walk through rooms; `rooms`: the default of --seeds."""
    line.add_argument("--seeds", type=seeds, default=rooms, help="rooms, e.g. 0-19 or 3,5,8-11 (default: %(default)s)")
    add_prompt_options(line)
    add_pair(line)
    add_edge_flags(line, "answers", "max_tokens", "dtype", max_tokens=96, answers=CONSTRAINED)
    add_views(line)
    line.add_argument("--max-actions", type=int, default=40)
    add_resumable_out(line, out)


def add_processes(line: argparse.ArgumentParser, default: int) -> None:
    """Register --processes."""
    shown = f"episodes at once; changes no figure (default: {default})"
    line.add_argument("--processes", type=int, default=default, choices=range(1, 65), metavar="N", help=shown)


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `closed-loop`."""
    line.add_argument("--difficulty", default="middle", choices=(*LEVELS, "all"))
    line.add_argument("--layout", default="room", choices=(*LAYOUTS, "all"), help="floor plan (default: %(default)s)")
    line.add_argument("--target", default="silver bottle", help="object to find; random: each room's own")
    shown = "models that answer, target, draft or both (default: target)"
    line.add_argument("--models", type=several(MODELS), default=[TARGET], help=shown)
    add_cameras(line)
    add_walks(line, "0-19", "closed_loop")
    add_processes(line, 1)


def add_cameras(line: argparse.ArgumentParser) -> None:
    """Register which cameras see the rooms, each height with each pitch and each field of view."""
    for flag, least, most, default, about in (
        ("--camera-height-m", 0.1, 1.5, GO2_MOUNT.height_m, "above the floor, m"),
        ("--camera-pitch-deg", -45.0, 45.0, GO2_MOUNT.pitch_deg, "looking down, degrees"),
        ("--camera-fov-deg", 20.0, 140.0, GO2_MOUNT.fov_deg, "fields of view, degrees"),
    ):
        shown = f"cameras: {about}, {least:g} to {most:g} (default: {default:g})"
        line.add_argument(flag, type=numbers(least, most), default=[default], metavar="X[,X]", help=shown)
    shown = "what models see: none: its whole frames; view: as go2_camera makes them; go2: and through the Go2's lens"
    line.add_argument("--crop", type=several([crop.value for crop in Crop]), default=[Crop.NONE.value], help=shown)


def run(options: argparse.Namespace) -> int:
    """Run what is not done yet, then print and write everything. Raises ValueError for options that make no sense."""
    object_name = "" if options.target == RANDOM else str(options.target)
    scene_of(0, "easy", object_name)
    if options.max_actions < 1:
        raise ValueError(f"--max-actions {options.max_actions}: give at least 1")
    journal = Journal(options.out, "closed_loop", settings(options), options.restart)
    how = Asking.of(options, _vocabulary(options))
    edge = edge_config(options, mode="edge")
    setting = Setting(edge, options.target_model, object_name, options.max_actions, how)
    report(options, walk(episode_keys(options), setting, journal, options.processes))
    return 0


def report(options: argparse.Namespace, episodes: Sequence[Episode]) -> None:
    """Print the tables and write them and their figures beside the journal."""
    chosen = settings(options)
    cameras = dict.fromkeys((episode.mount, episode.crop) for episode in episodes)
    by_camera = {camera: figures(each for each in episodes if (each.mount, each.crop) == camera) for camera in cameras}
    rows = [{**row, **mount._asdict(), "crop": crop} for (mount, crop), some in by_camera.items() for row in some]
    about: dict[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "pair": {name: chosen[f"{name}_model"] for name in MODELS},
    }
    parts = camera_tables(rows) if len(cameras) > 1 else []
    for (camera, of_camera), where in product(by_camera.items(), dict.fromkeys(map(place_of, rows))):
        some = [row for row in of_camera if place_of(row) == where]
        name = ", ".join([f"{place_name(where)} rooms", *([camera_name(*camera)] if len(cameras) > 1 else [])])
        parts.append(f"{name}, object: {options.target}\n{main_table(some)}")
        parts.append(outcome_table(some))
    places = {policy: placed(each for each in episodes if each.policy == policy) for policy in options.models}
    for policy, bands in places.items():
        if bands:
            parts.append(f"places that answers name, {policy}\n{figures_table('true distance', bands, PLACED_COLUMNS)}")
    if left_out := sum(row["episodes"] - row["spl_episodes"] for row in rows if row["policy"] == ORACLE):
        parts.append(f"SPL leaves out {left_out} rooms that the oracle does not solve")
    text = "\n\n".join([*parts, about["machine"]])
    print(text)
    (options.out / "closed_loop.txt").write_text(text + "\n", encoding="utf-8")
    write_json(options.out / "closed_loop.json", {"settings": chosen, **about, "figures": rows, "places": places})


def episode_keys(options: argparse.Namespace) -> list[EpisodeKey]:
    """Return all episodes in running order."""
    return [
        EpisodeKey(level, seed, policy, layout, mount=mount, crop=crop)
        for crop in options.crop
        for mount in starmap(
            CameraMount, product(options.camera_height_m, options.camera_pitch_deg, options.camera_fov_deg)
        )
        for layout in (LAYOUTS if options.layout == "all" else (options.layout,))
        for level in (LEVELS if options.difficulty == "all" else (options.difficulty,))
        for seed in options.seeds
        for policy in (ORACLE, *options.models)
    ]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what must be equal for two runs' episodes to stand in one table."""
    names = ("target", "max_actions", "max_tokens", "dtype", "response_order", "views", "answers")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    for model in MODELS:
        folder = getattr(options, f"{model}_model")
        needed = _found(folder).is_dir() or model in options.models
        chosen[f"{model}_model"] = folder_fingerprint(folder) if needed else ""
    return chosen | {"guide": guided(options)}


def guided(options: argparse.Namespace) -> bool:
    """Whether prompts explain the robot: by the target's vocabulary, or the draft's where there is no target."""
    return Guidance(options.guide).applies(_vocabulary(options))


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    target = _found(options.target_model)
    return Vocabulary.load(target if target.is_dir() else _found(options.draft_model))


def _found(name: Path) -> Path:
    """Return the folder that a path or hub name means; `name` itself where there is none, which may not be needed."""
    try:
        return find_model(name)
    except ModelFolderError:
        return name
