"""Closed loop: does the robot find what it is told to find, how well does it walk, and how long does it stand?

Episodes run in the kinematic simulator, without ROS; answers come through the real edge decoder and one real verifier
process. Modes that give the same tokens walk the same way, so they differ in time alone. The oracle walks
every room too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evaluation.closed_loop.episodes import Answerers, Episode, EpisodeKey, Policy, Setting, run_one
from evaluation.closed_loop.scores import class_table, different_walks, figures, main_table, outcome_table
from evaluation.journal import Journal
from evaluation.setting import (
    add_drafting,
    add_link,
    add_predictor,
    add_prompt_options,
    draft_flags,
    machine,
    milliseconds,
    several,
    verifier,
)
from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.emulation import declared_name, load_link
from speculation.predictor import name as predictor_name
from speculation.profile import load_profile
from speculation.prompts import Guidance, ResponseOrder, Vocabulary
from speculation.vlm.folder import ModelFolderError, find_model

LEVELS = ("easy", "middle", "hard")
MODES = tuple(policy.value for policy in Policy if policy is not Policy.ORACLE)
MAX_PROCESSES = 64


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `closed-loop`."""
    line = commands.add_parser("closed-loop", help="find objects in simulated rooms", description=__doc__)
    line.add_argument("--seeds", default="0-19", help="rooms, e.g. 0-19 or 3,5,8-11 (default: %(default)s)")
    line.add_argument("--difficulty", default="middle", choices=(*LEVELS, "all"))
    line.add_argument("--target", default="silver bottle", help="object to find; random: each room's own")
    line.add_argument("--modes", type=several(MODES), default=["cloud", "sd", "fsd", "full"],
                      help=f"some of {', '.join(MODES)} (default: cloud,sd,fsd,full)")  # fmt: skip
    line.add_argument("--rtt-ms", type=milliseconds, default=[0.0], metavar="MS[,MS]",
                      help="round trips declared on top of the profile's (default: 0)")  # fmt: skip
    add_prompt_options(line)
    line.add_argument("--profile", default="raw", help="device profile whose times are waited for (default: raw)")
    add_link(line)
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--draft-model", type=Path, default=PROJECT / "models" / "draft")
    line.add_argument("--exits", type=Path, help="folder of exit heads (default: as the verifier finds them)")
    line.add_argument("--max-actions", type=int, default=40)
    line.add_argument("--max-tokens", type=int, default=96)
    add_drafting(line)
    add_predictor(line)
    line.add_argument("--dtype", default="float32")
    line.add_argument("--processes", type=int, default=1, help="episodes at once; times are honest with 1 (default: 1)")
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "closed_loop", help="results; run again to go on")
    line.add_argument("--restart", action="store_true", help="throw away what --out holds")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run what is not done yet, then print and write everything. Raises ValueError for options that make no sense.

    Raises RuntimeError, VerifierLost or AnswerLate where the verifier fails; what was finished is kept.
    """
    keys = episode_keys(options)
    load_profile(options.profile)
    load_link(options.link)
    scene_of(0, "easy", "" if options.target == "random" else options.target)
    if not 1 <= options.processes <= MAX_PROCESSES:
        raise ValueError(f"--processes {options.processes} is outside 1 to {MAX_PROCESSES}")
    if options.max_actions < 1:
        raise ValueError(f"--max-actions {options.max_actions}: give at least 1")
    journal = Journal(options.out, "closed_loop", settings(options), options.restart)
    done = {episode.key: episode for episode in map(Episode.from_json, journal.pieces())}
    missing = [key for key in keys if key not in done]
    bar = tqdm(total=len(keys), initial=len(keys) - len(missing), unit="episode", disable=None)
    with bar, served(options, missing) as address:
        for episode in episodes(missing, setting(options, address), options.processes):
            journal.add(episode.to_json())
            done[episode.key] = episode
            bar.update()
    report(options, [done[key] for key in keys])
    return 0


def report(options: argparse.Namespace, finished: Sequence[Episode]) -> None:
    """Print the tables and write figures and pictures beside the journal."""
    rows = figures(finished)
    declared = declared_name(options.profile, options.link)
    parts = []
    for level in dict.fromkeys(row.difficulty for row in rows):
        some = [row for row in rows if row.difficulty == level]
        parts.append(f"{level} rooms, object: {options.target}, profile: {declared}\n{main_table(some)}")
        parts.append(class_table(some))
        parts.append(outcome_table(some))
    differ, compared = different_walks(finished)
    if compared:
        parts.append(f"rooms in which the modes of the same target act differently: {differ} of {compared}")
    oracle = [row for row in rows if row.policy == Policy.ORACLE.value]
    left_out = sum(row.episodes - row.spl_episodes for row in oracle)
    if left_out:
        parts.append(f"SPL leaves out {left_out} rooms that the oracle does not solve")
    interruptions = sum(episode.interruptions for episode in finished)
    if interruptions:
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
        "figures": [asdict(row) for row in rows],
    }
    (options.out / "closed_loop.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    from evaluation.closed_loop.plots import draw

    for path in draw(options.out, rows, finished, declared):
        print(path)


def episode_keys(options: argparse.Namespace) -> list[EpisodeKey]:
    """Return all episodes in running order: links outermost, modes innermost, so that the machine's moods fall on all.

    Raises ValueError, naming the option, for lists that make no sense.
    """
    policies = [Policy.ORACLE, *map(Policy, options.modes)]
    links = sorted(options.rtt_ms)
    levels = LEVELS if options.difficulty == "all" else (options.difficulty,)
    keys = []
    for turn, rtt_ms in enumerate(links):
        for level in levels:
            for seed in seeds(options.seeds):
                for policy in policies:
                    if policy.linked:
                        keys.append(EpisodeKey(level, seed, policy, rtt_ms))
                    elif turn == 0:
                        keys.append(EpisodeKey(level, seed, policy))
    return keys


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
    from speculation.vlm.load import folder_fingerprint

    names = ("target", "profile", "link", "max_actions", "max_tokens", "gamma", "drafting", "dtype", "response_order")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    modes = set(options.modes)
    for name, folder, needless in (
        ("target_model", options.target_model, {Policy.DRAFT.value, Policy.EDGE.value}),
        ("draft_model", options.draft_model, {Policy.TARGET.value}),
    ):
        chosen[name] = folder_fingerprint(folder) if _found(folder).is_dir() or modes - needless else ""
    chosen["guide"] = guided(options)
    chosen["predictor"] = predictor_name(options.predictor, _found(options.draft_model))
    chosen["exits"] = str(options.exits) if options.exits else ""
    return chosen


def setting(options: argparse.Namespace, address: str) -> Setting:
    """Return what every process needs to run episodes."""
    return Setting(
        target_model=options.target_model,
        draft_model=options.draft_model,
        verifier=address,
        profile=options.profile,
        link=options.link,
        object_name=options.target,
        max_actions=options.max_actions,
        gamma=options.gamma,
        drafting=options.drafting,
        predictor=options.predictor,
        max_tokens=options.max_tokens,
        dtype=options.dtype,
        order=ResponseOrder(options.response_order),
        guide=guided(options),
    )


def guided(options: argparse.Namespace) -> bool:
    """Whether prompts explain the robot: by the target's vocabulary, or the draft's where there is no target."""
    target = _found(options.target_model)
    folder = target if target.is_dir() else _found(options.draft_model)
    return Guidance(options.guide).applies(Vocabulary.load(folder))


def _found(name: Path) -> Path:
    """Return the folder that a path or hub name means; `name` itself where there is none, which no mode may need."""
    try:
        return find_model(name)
    except ModelFolderError:
        return name


@contextmanager
def served(options: argparse.Namespace, keys: Sequence[EpisodeKey]) -> Iterator[str]:
    """Yield the address of a verifier for these episodes; none is started, and the text is empty, if none needs it."""
    flags = ["--profile", options.profile, "--dtype", options.dtype]
    # A link that is opened anew may meet its predecessor's session.
    flags += ["--max-sessions", str(max(8, 2 * options.processes))]
    flags += ["--exits", str(options.exits)] if options.exits else []
    flags += draft_flags([key.policy.value for key in keys], options.draft_model)
    needed = any(key.policy.linked for key in keys)
    with verifier(options.target_model, *flags) if needed else nullcontext("") as address:
        yield address


def episodes(keys: Sequence[EpisodeKey], shared: Setting, processes: int) -> Iterator[Episode]:
    """Yield the episodes as they end: one after the other in this process, or in several processes of their own."""
    if processes == 1 or len(keys) < 2:
        answerers = Answerers(shared)
        try:
            for key in keys:
                yield run_one(key, shared, answerers)
        finally:
            answerers.close()
        return
    # Spawned, not forked: a GL context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(keys)), context, _begin, (shared,)) as pool:
        waiting = iter(keys)
        running = {pool.submit(_work, key) for key in islice(waiting, 2 * processes)}
        try:
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
                    running.update(pool.submit(_work, key) for key in islice(waiting, 1))
        except BrokenProcessPool:
            raise RuntimeError("a process of the episodes was ended from outside; the same command goes on") from None
        finally:
            for future in running:
                future.cancel()


_worker: tuple[Setting, Answerers] | None = None


def _begin(shared: Setting) -> None:
    """Prepare a process: its models and links are opened when they are needed."""
    global _worker
    # Ctrl-C reaches all processes; this one has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _worker = (shared, Answerers(shared))


def _work(key: EpisodeKey) -> Episode:
    if _worker is None:
        raise RuntimeError("the process was not prepared")
    return run_one(key, *_worker)
