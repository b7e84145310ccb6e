"""`closed-loop`: does the robot find what it is asked to find, how well does it walk, and how long does it stand?

Episodes run in the kinematic simulator, without ROS; answers come through the real edge decoder and one real verifier
process. Modes that give the same tokens walk the same way, so they differ in time alone. The oracle walks
every room too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from edge_drafter import Mode
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, ResponseOrder, Vocabulary, asked_form
from speculation.links import declared_name, load_link
from speculation.predictor import name as predictor_name
from speculation.processes import worker_pool
from speculation.profiles import load_profile
from speculation.progress import progress
from speculation.vlm.folder import ModelFolderError, find_model
from speculation.vlm.load import folder_fingerprint
from vlm_nav_evaluation.closed_loop.episodes import (
    DRAFT,
    MODES,
    ORACLE,
    TARGET,
    Answerers,
    Episode,
    EpisodeKey,
    Setting,
    is_linked,
    run_one,
)
from vlm_nav_evaluation.closed_loop.plots import write_plots
from vlm_nav_evaluation.closed_loop.scores import (
    LAYOUTS,
    LEVELS,
    class_table,
    different_walks,
    figures,
    main_table,
    outcome_table,
    place_name,
    place_of,
)
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.setting import add_decoding, draft_flags, frame_flags, head_flags, machine, verifier

MAX_PROCESSES = 64
RANDOM = "random"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `closed-loop`."""
    line = commands.add_parser("closed-loop", help="find objects in simulated rooms", description=__doc__)
    line.add_argument("--seeds", default="0-19", help="rooms, e.g. 0-19 or 3,5,8-11 (default: %(default)s)")
    line.add_argument("--difficulty", default="middle", choices=(*LEVELS, "all"))
    line.add_argument("--layout", default="room", choices=(*LAYOUTS, "all"), help="floor plan (default: %(default)s)")
    line.add_argument("--target", default="silver bottle", help="object to find; random: each room's own")
    add_decoding(line, MODES, max_tokens=96, out="closed_loop")
    line.add_argument("--max-actions", type=int, default=40)
    line.add_argument("--processes", type=int, default=1, help="episodes at once; times are valid with 1 (default: 1)")
    line.set_defaults(run=run, answers=CONSTRAINED)


def run(options: argparse.Namespace) -> int:
    """Run what is not done yet, then print and write everything. Raises ValueError for options that make no sense.

    Raises RuntimeError, VerifierLost or AnswerLate where the verifier fails; what was finished is kept.
    """
    keys = episode_keys(options)
    load_profile(options.profile)
    load_link(options.link)
    object_name = "" if options.target == RANDOM else str(options.target)
    scene_of(0, "easy", object_name)
    if not 1 <= options.processes <= MAX_PROCESSES:
        raise ValueError(f"--processes {options.processes} is outside 1 to {MAX_PROCESSES}")
    if options.max_actions < 1:
        raise ValueError(f"--max-actions {options.max_actions}: give at least 1")
    journal = Journal(options.out, "closed_loop", settings(options), options.restart)
    done = {episode.key: episode for episode in (msgspec.convert(piece, Episode) for piece in journal.pieces())}
    missing = [key for key in keys if key not in done]
    bar = progress(total=len(keys), initial=len(keys) - len(missing), unit="episode")
    with bar, served(options, missing) as address:
        edge = edge_config(options, address, mode=Mode.EDGE.value)
        order = ResponseOrder(options.response_order)
        form = form_of(options)
        shared = Setting(edge, options.target_model, object_name, options.max_actions, order, guided(options), form)
        for episode in episodes(missing, shared, options.processes):
            journal.add(asdict(episode))
            done[episode.key] = episode
            bar.update()
    report(options, [done[key] for key in keys])
    return 0


def report(options: argparse.Namespace, finished: Sequence[Episode]) -> None:
    """Print the tables and write figures and plots beside the journal."""
    rows = figures(finished)
    declared = declared_name(options.profile, options.link)
    parts = []
    for where in dict.fromkeys(map(place_of, rows)):
        some, name = [row for row in rows if place_of(row) == where], place_name(where)
        parts.append(f"{name} rooms, object: {options.target}, profile: {declared}\n{main_table(some)}")
        parts += [class_table(some), outcome_table(some)]
    differ, compared = different_walks(finished)
    if compared:
        parts.append(f"rooms in which the modes of the same target act differently: {differ} of {compared}")
    if left_out := sum(row["episodes"] - row["spl_episodes"] for row in rows if row["policy"] == ORACLE):
        parts.append(f"SPL leaves out {left_out} rooms that the oracle does not solve")
    if interruptions := sum(episode.interruptions for episode in finished):
        parts.append(f"the link was lost {interruptions} times; that time is in the answers")
    parts.append(f"{machine()}; episodes at once: {options.processes}")
    text = "\n\n".join(parts)
    print(text)
    (options.out / "closed_loop.txt").write_text(text + "\n", encoding="utf-8")
    data = {
        "settings": settings(options),
        "machine": machine(),
        "processes": options.processes,
        "rooms_with_different_walks": differ,
        "rooms_compared": compared,
        "figures": rows,
    }
    (options.out / "closed_loop.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for path in write_plots(options.out, rows, finished, declared):
        print(path)


def episode_keys(options: argparse.Namespace) -> list[EpisodeKey]:
    """Return all episodes in running order: links outermost, modes innermost, so that a busy machine slows all alike.

    Raises ValueError, naming the option, for lists that make no sense.
    """
    links = sorted(options.rtt_ms)
    return [
        EpisodeKey(level, seed, policy, rtt_ms if is_linked(policy) else None, layout)
        for rtt_ms in links
        for layout in (LAYOUTS if options.layout == "all" else (options.layout,))
        for level in (LEVELS if options.difficulty == "all" else (options.difficulty,))
        for seed in seeds(options.seeds)
        for policy in (ORACLE, *options.modes)
        if is_linked(policy) or rtt_ms == links[0]
    ]


def seeds(text: str) -> list[int]:
    """Read '0-4,7'. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise ValueError(f"--seeds {text}: {part!r} is no seed and no range; write for example 0-19 or 3,5,8-11")
        found.extend(range(int(first), int(last or first) + 1))
    return list(dict.fromkeys(found))


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


def form_of(options: argparse.Namespace) -> int:
    """Return the form of the prompts, by the same vocabulary; 1 for models without one."""
    return asked_form(_vocabulary(options))


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    target = _found(options.target_model)
    return Vocabulary.load(target if target.is_dir() else _found(options.draft_model))


def _found(name: Path) -> Path:
    """Return the folder that a path or hub name means; `name` itself where there is none, which no mode may need."""
    try:
        return find_model(name)
    except ModelFolderError:
        return name


def served(options: argparse.Namespace, keys: Sequence[EpisodeKey]) -> AbstractContextManager[str]:
    """Return the address of a verifier for these episodes; none is started, and the text is empty, if none needs it."""
    if not any(is_linked(key.policy) for key in keys):
        return nullcontext("")
    # A link that is opened anew may meet its predecessor's session.
    sessions = max(8, 2 * options.processes)
    flags = ["--profile", options.profile, "--dtype", options.dtype, "--max-sessions", str(sessions)]
    flags += ["--exits", str(options.exits)] if options.exits else []
    flags += [*head_flags(options), *frame_flags(options)]
    return verifier(options.target_model, *flags, *draft_flags([key.policy for key in keys], options.draft_model))


def episodes(keys: Sequence[EpisodeKey], shared: Setting, processes: int) -> Iterator[Episode]:
    """Yield the episodes as they end: one after the other in this process, or in several processes of their own."""
    if processes == 1 or len(keys) < 2:
        with closing(Answerers(shared)) as answerers:
            for key in keys:
                yield run_one(key, shared, answerers)
        return
    with worker_pool(min(processes, len(keys)), [__name__]) as pool:
        for future in as_completed([pool.submit(_work, key, shared) for key in keys]):
            yield future.result()


_answerers: list[Answerers] = []
"""Of a process of the pool, opened by its first episode."""


def _work(key: EpisodeKey, shared: Setting) -> Episode:
    if not _answerers:
        _answerers.append(Answerers(shared))
    return run_one(key, shared, _answerers[0])
