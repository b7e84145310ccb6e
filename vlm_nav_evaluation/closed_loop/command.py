"""`closed-loop`: does the robot find what it is asked to find, how well does it walk, and how long does it stand?

Episodes run in the kinematic simulator, without ROS; answers come through the real edge decoder and one real verifier
process. Modes that give the same tokens walk the same way, so they differ in time alone. The oracle walks
every room too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product, starmap
from pathlib import Path
from typing import Any

from edge_drafter import Mode
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, ResponseOrder, Vocabulary, asked_form
from speculation.links import declared_name, load_link
from speculation.predictor import name as predictor_name
from speculation.profiles import load_profile
from speculation.vlm.folder import ModelFolderError, find_model
from speculation.vlm.load import folder_fingerprint
from vlm_nav_evaluation.closed_loop.camera_views import Crop
from vlm_nav_evaluation.closed_loop.episodes import (
    DRAFT,
    MODES,
    ORACLE,
    TARGET,
    Episode,
    EpisodeKey,
    Setting,
    finished,
    is_linked,
    walk,
)
from vlm_nav_evaluation.closed_loop.scores import (
    LAYOUTS,
    LEVELS,
    PLACED_COLUMNS,
    camera_name,
    camera_tables,
    different_walks,
    figures,
    main_table,
    outcome_table,
    place_name,
    place_of,
    placed,
)
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import add_decoding, numbers, seeds, several
from vlm_nav_evaluation.results import commit, machine, write_json
from vlm_nav_evaluation.tables import figures_table
from vlm_nav_evaluation.verifier_process import verifier, verifier_flags
from vlm_nav_simulation.geometry import GO2_MOUNT, CameraMount

RANDOM = "random"


def add_walks(line: argparse.ArgumentParser, rooms: str, modes: Sequence[str], out: str) -> None:
    """Register what commands share that walk through rooms; `rooms`: the default of --seeds."""
    line.add_argument("--seeds", type=seeds, default=rooms, help="rooms, e.g. 0-19 or 3,5,8-11 (default: %(default)s)")
    add_decoding(line, modes, out, max_tokens=96, answers=CONSTRAINED)
    line.add_argument("--max-actions", type=int, default=40)


def add_processes(line: argparse.ArgumentParser, default: int, why: str) -> None:
    """Register --processes."""
    shown = f"episodes at once{why} (default: {default})"
    line.add_argument("--processes", type=int, default=default, choices=range(1, 65), metavar="N", help=shown)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `closed-loop`."""
    line = commands.add_parser("closed-loop", help="find objects in simulated rooms", description=__doc__)
    line.add_argument("--difficulty", default="middle", choices=(*LEVELS, "all"))
    line.add_argument("--layout", default="room", choices=(*LAYOUTS, "all"), help="floor plan (default: %(default)s)")
    line.add_argument("--target", default="silver bottle", help="object to find; random: each room's own")
    add_cameras(line)
    add_walks(line, "0-19", MODES, "closed_loop")
    add_processes(line, 1, "; times are valid with 1")
    line.set_defaults(run=run)


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
    """Run what is not done yet, then print and write everything. Raises ValueError for options that make no sense.

    Raises RuntimeError, VerifierLost or AnswerLate where the verifier fails; what was finished is kept.
    """
    load_profile(options.profile)
    load_link(options.link)
    object_name = "" if options.target == RANDOM else str(options.target)
    scene_of(0, "easy", object_name)
    if options.max_actions < 1:
        raise ValueError(f"--max-actions {options.max_actions}: give at least 1")
    journal = Journal(options.out, "closed_loop", settings(options), options.restart)
    keys, done = episode_keys(options), finished(journal)
    with served(options, [key.policy for key in keys if key not in done]) as address:
        edge = edge_config(options, address, mode=Mode.EDGE.value)
        order, form = ResponseOrder(options.response_order), asked_form(_vocabulary(options))
        shared = Setting(edge, options.target_model, object_name, options.max_actions, order, guided(options), form)
        episodes = walk(keys, shared, journal, options.processes)
    report(options, episodes)
    return 0


def report(options: argparse.Namespace, episodes: Sequence[Episode]) -> None:
    """Print the tables and write them and their figures beside the journal."""
    cameras = dict.fromkeys((episode.mount, episode.crop) for episode in episodes)
    by_camera = {camera: figures(each for each in episodes if (each.mount, each.crop) == camera) for camera in cameras}
    rows = [{**row, **mount._asdict(), "crop": crop} for (mount, crop), some in by_camera.items() for row in some]
    declared = declared_name(options.profile, options.link)
    parts = camera_tables(rows) if len(cameras) > 1 else []
    for (camera, of_camera), where in product(by_camera.items(), dict.fromkeys(map(place_of, rows))):
        some = [row for row in of_camera if place_of(row) == where]
        name = ", ".join([f"{place_name(where)} rooms", *([camera_name(*camera)] if len(cameras) > 1 else [])])
        parts.append(f"{name}, object: {options.target}, profile: {declared}\n{main_table(some)}")
        parts.append(outcome_table(some))
    places = {policy: placed(each for each in episodes if each.policy == policy) for policy in options.modes}
    for policy, bands in places.items():
        if bands:
            parts.append(f"places that answers name, {policy}\n{figures_table('true distance', bands, PLACED_COLUMNS)}")
    differ, compared = different_walks(episodes)
    if compared:
        parts.append(f"rooms in which the modes of the same target act differently: {differ} of {compared}")
    if left_out := sum(row["episodes"] - row["spl_episodes"] for row in rows if row["policy"] == ORACLE):
        parts.append(f"SPL leaves out {left_out} rooms that the oracle does not solve")
    if interruptions := sum(episode.interruptions for episode in episodes):
        parts.append(f"the link was lost {interruptions} times; that time is in the answers")
    parts.append(f"{machine()}; episodes at once: {options.processes}")
    text = "\n\n".join(parts)
    print(text)
    (options.out / "closed_loop.txt").write_text(text + "\n", encoding="utf-8")
    chosen = settings(options)
    data = {
        "settings": chosen,
        "commit": commit(),
        "machine": machine(),
        "pair": {name: chosen[f"{name}_model"] for name in ("target", "draft")},
        "processes": options.processes,
        "rooms_with_different_walks": differ,
        "rooms_compared": compared,
        "figures": rows,
        "places": places,
    }
    write_json(options.out / "closed_loop.json", data)


def episode_keys(options: argparse.Namespace) -> list[EpisodeKey]:
    """Return all episodes in running order: links outermost, modes innermost; a busy machine slows all alike."""
    links = sorted(options.rtt_ms)
    return [
        EpisodeKey(level, seed, policy, rtt_ms if is_linked(policy) else None, layout, mount=mount, crop=crop)
        for rtt_ms in links
        for crop in options.crop
        for mount in starmap(
            CameraMount, product(options.camera_height_m, options.camera_pitch_deg, options.camera_fov_deg)
        )
        for layout in (LAYOUTS if options.layout == "all" else (options.layout,))
        for level in (LEVELS if options.difficulty == "all" else (options.difficulty,))
        for seed in options.seeds
        for policy in (ORACLE, *options.modes)
        if is_linked(policy) or rtt_ms == links[0]
    ]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what must be equal for two runs' episodes to stand in one table."""
    names = (
        "target", "profile", "link", "max_actions", "max_tokens", "gamma", "drafting", "fed_head", "dtype",
        "response_order", "views", "answers",
    )  # fmt: skip
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    for name, folder, without in (
        ("target_model", options.target_model, {DRAFT, Mode.EDGE.value}),
        ("draft_model", options.draft_model, {TARGET}),
    ):
        needed = _found(folder).is_dir() or set(options.modes) - without
        chosen[name] = folder_fingerprint(folder) if needed else ""
    chosen["guide"] = guided(options)
    chosen["predictor"] = predictor_name(options.predictor, _found(options.draft_model))
    chosen["exits"] = str(options.exits) if options.exits else ""
    return chosen


def guided(options: argparse.Namespace) -> bool:
    """Whether prompts explain the robot: by the target's vocabulary, or the draft's where there is no target."""
    return Guidance(options.guide).applies(_vocabulary(options))


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    target = _found(options.target_model)
    return Vocabulary.load(target if target.is_dir() else _found(options.draft_model))


def _found(name: Path) -> Path:
    """Return the folder that a path or hub name means; `name` itself where there is none, which no mode may need."""
    try:
        return find_model(name)
    except ModelFolderError:
        return name


def served(options: argparse.Namespace, policies: Sequence[str]) -> AbstractContextManager[str]:
    """Return the address of a verifier for these policies; none is started, and the text is empty, if none needs it."""
    if not any(map(is_linked, policies)):
        return nullcontext("")
    # A link that is opened anew may meet its predecessor's session.
    sessions = ("--max-sessions", str(max(8, 2 * options.processes)))
    return verifier(options.target_model, *verifier_flags(options, policies), *sessions)
