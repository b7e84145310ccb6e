"""`acting`: does faster decoding make a better robot? Episodes on virtual time in which the robot acts on its answers.

`wait` acts on whole answers, reasons first; `wait-action` on whole answers, action first; `early` begins a motion once
its kind is committed; `ahead` also asks the next question while it moves, as the robot does; `hold` is `ahead` that
stands while the link is dead, where the others let the draft model decide (DEGRADED).
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from edge_drafter import DraftingConfig, Mode
from spec_vlm_nav.link_monitor import LinkLimits
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.grammar import CONSTRAINED, FREE
from speculation.language.prompts import ResponseOrder, Vocabulary
from speculation.progress import progress
from vlm_nav_evaluation.closed_loop.command import RANDOM, add_processes
from vlm_nav_evaluation.closed_loop.scores import LEVELS, spl, wilson
from vlm_nav_evaluation.closed_loop.timelines import Timelines
from vlm_nav_evaluation.closed_loop.virtual_robot import ALWAYS_UP, ActingEpisode, VirtualRobot, run_acting
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import add_edge_flags, add_pair, add_resumable_out, milliseconds, seeds, several
from vlm_nav_evaluation.parallel import run_parallel
from vlm_nav_evaluation.plots import DPI, MODE_COLOURS, MODE_MARKERS, SMALL, new_figure
from vlm_nav_evaluation.results import provenance, write_json
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time.record import Models
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST, WITH_COST, load_timings
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

TIME_S = 300.0
LAST = ResponseOrder.ACTION_FIRST
BEHAVIOURS = {
    "wait": NavigatorConfig(act_early=False, look_ahead=False, time_allowance_s=TIME_S),
    "wait-action": NavigatorConfig(LAST, act_early=False, look_ahead=False, time_allowance_s=TIME_S),
    "early": NavigatorConfig(LAST, look_ahead=False, time_allowance_s=TIME_S),
    "ahead": NavigatorConfig(LAST, time_allowance_s=TIME_S),
    "hold": NavigatorConfig(LAST, time_allowance_s=TIME_S, link=LinkLimits(degraded_s=0.0)),
}
FIRST_SEED = 1_000_003
"""A room that no episode is in, for the first answer of every decoder."""
COLUMNS = (
    Column("found", "of"),
    Column("95 %", "interval"),
    Column("SPL", "spl"),
    Column("to goal s", "to_goal_s", ".1f"),
    Column("mean", "mean_to_goal_s", ".1f"),
    Column("standing s", "standing_s", ".1f"),
    Column("of wait", "standing_share", ".0%"),
    Column("frame to motion ms", "first_motion_s", ".0f", MS),
    Column("actions", "actions", ".1f"),
    Column("asked ahead", "ahead_share", ".0%"),
    Column("collisions", "collisions"),
)


DASHES = {"wait": ":", "early": "--", "ahead": "-"}
"""Line styles by behaviour."""
Case = tuple[str, str, float, str]
"""A behaviour, a mode, a round trip in milliseconds, and how the link is dead."""


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `acting`."""
    modes = [mode.value for mode in Mode if DraftingConfig.of(mode).needs_link and mode is not Mode.SERVER_SD]
    line.add_argument("--seeds", type=seeds, default="0-49", help="rooms, e.g. 0-49 (default: %(default)s)")
    line.add_argument("--difficulty", default="middle", choices=LEVELS)
    line.add_argument("--target", default="silver bottle", help="object to find; random: each room's own")
    line.add_argument("--modes", type=several(modes), default=["cloud", "sd", "full"])
    line.add_argument("--rtt-ms", type=milliseconds, default=[0.0, 40.0, 200.0], metavar="MS[,MS]", help="round trips")
    usual = [name for name in BEHAVIOURS if name != "hold"]
    line.add_argument("--behaviours", type=several(list(BEHAVIOURS)), default=usual, help="default: all but hold")
    dead = "dead seconds of every so many, e.g. 3/15,10/30 (default: never)"
    line.add_argument("--dead", type=outages, default=[ALWAYS_UP], metavar="S/S[,S/S]", help=dead)
    times = f"go2_a100_scaled{WITH_COST}{DEFAULT_COST}"
    line.add_argument("--timings", default=times, help="declared times, and what loads cost (default: %(default)s)")
    add_pair(line)
    add_edge_flags(line, "max_tokens", "answers", max_tokens=96, answers=CONSTRAINED)
    line.add_argument("--max-actions", type=int, default=60)
    add_processes(line, 2)
    add_resumable_out(line, "acting")


def run(options: argparse.Namespace) -> int:
    """Run what is not done yet, then print and write everything. Raises ValueError for options that make no sense."""
    load_timings(options.timings)
    room(options, 0)
    names = (
        "difficulty", "target", "timings", "max_tokens", "max_actions", "target_model", "draft_model",
        "answers",
    )  # fmt: skip
    journal = Journal(options.out, "acting", {name: str(getattr(options, name)) for name in names}, options.restart)
    done = [msgspec.convert(piece, ActingEpisode) for piece in journal.pieces()]
    known = {(each.seed, *_case(each)) for each in done}
    cases = list(product(options.behaviours, options.modes, options.rtt_ms, options.dead))
    missing = {seed: [case for case in cases if (seed, *case) not in known] for seed in options.seeds}
    jobs = [(seed, left, options) for seed, left in missing.items() if left]
    total = len(options.seeds) * len(cases)
    with progress(total=total, initial=total - sum(map(len, missing.values())), unit="episode") as bar:
        for episodes in run_parallel(run_room, jobs, options.processes):
            for episode in episodes:
                journal.add(asdict(episode))
                done.append(episode)
                bar.update()
    report(options, [each for each in done if each.seed in missing and _case(each) in cases])
    return 0


def report(options: argparse.Namespace, episodes: Sequence[ActingEpisode]) -> None:
    """Print the table; write it, its figures and the plot."""
    rows = figures(episodes, shortest(options, {each.seed for each in episodes}))
    parts = []
    for rtt, dead in dict.fromkeys((row["rtt_ms"], row["dead"]) for row in rows):
        some = {
            f"{row['mode']}, {row['behaviour']}": row for row in rows if (row["rtt_ms"], row["dead"]) == (rtt, dead)
        }
        when = "" if dead == ALWAYS_UP else ", dead for {} of every {} s".format(*dead.split("/"))
        parts.append(f"round trip {rtt:g} ms{when}\n{figures_table('mode, behaviour', some, COLUMNS)}")
    about = provenance(options)
    parts.append(
        f"{options.difficulty} rooms, object: {options.target}, times: {options.timings} on virtual time"
        + (f", answers {options.answers}" if options.answers == FREE else "")
    )
    text = "\n\n".join([*parts, about["machine"]])
    print(text)
    stem = "acting" if options.dead == [ALWAYS_UP] else "acting_dead_link"
    (options.out / f"{stem}.txt").write_text(text + "\n", encoding="utf-8")
    data = {**about, "timings": options.timings, "figures": rows}
    write_json(options.out / f"{stem}.json", data)
    if options.dead == [ALWAYS_UP]:
        print(write_plot(options.out, rows))


def write_plot(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write acting.png: standing time, time to goal and success over the round trip, and return its path."""
    figure = new_figure(4.6, 13.0)
    axes = figure.subplots(1, 3)
    columns = (
        ("standing_s", "standing, s (median)"),
        ("to_goal_s", "time to goal, s (median)"),
        ("found", "rooms with the object found"),
    )
    for ax, (name, title) in zip(axes, columns, strict=True):
        for mode in dict.fromkeys(row["mode"] for row in rows):
            for behaviour, dashes in DASHES.items():
                some = [row for row in rows if (row["mode"], row["behaviour"]) == (mode, behaviour)]
                places = [row["rtt_ms"] for row in some]
                if some:
                    ax.plot(places, [row[name] for row in some], dashes, color=MODE_COLOURS[mode],
                            marker=MODE_MARKERS[mode], label=f"{mode}, {behaviour}")  # fmt: skip
        ax.set_xlabel("round trip, ms")
        ax.set_title(title)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
    axes[2].set_ylim(0, max(row["episodes"] for row in rows) * 1.04)
    axes[2].legend(fontsize=SMALL, loc="lower left")
    path = folder / "acting.png"
    figure.savefig(path, dpi=DPI)
    return path


def figures(episodes: Sequence[ActingEpisode], shortest_m: dict[int, float]) -> list[dict[str, Any]]:
    """Return a row per mode, round trip and behaviour.

    to_goal_s, standing_s: medians over the episodes that found the target, as mean_to_goal_s is of. standing_share:
    standing of all episodes against `wait` of the same mode and round trip, in the same rooms. first_motion_s: median
    over all decisions, from the frame's time. ahead_share is of all questions.
    """
    groups: dict[Case, list[ActingEpisode]] = defaultdict(list)
    for each in episodes:
        groups[_case(each)].append(each)
    rows = []
    for (behaviour, mode, rtt, dead), some in groups.items():
        found = [each for each in some if each.success]
        waits = {each.seed: each.standing_s for each in groups.get(("wait", mode, rtt, dead), [])}
        both = [each for each in some if each.seed in waits]
        waited = sum(waits[each.seed] for each in both)
        motions = [seconds for each in some for seconds in each.first_motion_s]
        asked = sum(each.questions for each in some)
        low, high = wilson(len(found), len(some))
        rows.append(
            {
                "mode": mode,
                "rtt_ms": rtt,
                "dead": dead,
                "behaviour": behaviour,
                "of": f"{len(found)}/{len(some)}",
                "found": len(found),
                "episodes": len(some),
                "interval": f"{low:.0%}-{high:.0%}",
                "spl": spl((e.success, e.path_m, shortest_m[e.seed]) for e in some if e.seed in shortest_m),
                "to_goal_s": median(each.total_s for each in found) if found else None,
                "mean_to_goal_s": mean(each.total_s for each in found) if found else None,
                "standing_s": median(each.standing_s for each in found) if found else None,
                "standing_share": sum(each.standing_s for each in both) / waited if waited else None,
                "first_motion_s": median(motions) if motions else None,
                "actions": mean(each.actions for each in some),
                "ahead_share": sum(each.used_ahead for each in some) / asked,
                "collisions": mean(each.collisions for each in some),
            }
        )
    order = list(BEHAVIOURS)
    return sorted(
        rows, key=lambda row: (row["rtt_ms"], _seconds(row["dead"]), row["mode"], order.index(row["behaviour"]))
    )


def outages(text: str) -> list[str]:
    """Read '3/15,10/30', dead seconds of every so many, each once; an argparse type."""
    found = [word.strip() for word in text.split(",")]
    for each in found:
        try:
            dead_s, every_s = _seconds(each)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{each!r}: write dead seconds of every so many, e.g. 10/30") from None
        if not 0.0 <= dead_s < every_s <= TIME_S:
            raise argparse.ArgumentTypeError(f"{each!r}: a link is dead for a part of a time of at most {TIME_S:g} s")
    return list(dict.fromkeys(found))


def _seconds(dead: str) -> list[float]:
    return [float(word) for word in dead.split("/")]


def _case(episode: ActingEpisode) -> Case:
    return episode.behaviour, episode.mode, episode.rtt_ms, episode.dead


def room(options: argparse.Namespace, seed: int) -> Scene:
    """Return a room. Raises ValueError for a target that cannot be in one."""
    return scene_of(seed, options.difficulty, "" if options.target == RANDOM else options.target)


def shortest(options: argparse.Namespace, rooms_of: set[int]) -> dict[int, float]:
    """Return the oracle's path by room, m, where it finds the object; SPL counts it as the shortest."""
    walks = {seed: run_episode(scene := room(options, seed), oracle_policy(scene)) for seed in sorted(rooms_of)}
    return {seed: result.path_length for seed, result in walks.items() if result.success}


def run_room(seed: int, cases: Sequence[Case], options: argparse.Namespace) -> list[ActingEpisode]:
    """Run a room's episodes; questions that come again among them are recorded once."""
    models = (options.target_model, options.draft_model)
    timelines = _timelines(*models, options.timings, options.max_tokens, options.answers)
    timelines.forget()
    scene, objects = room(options, seed), Vocabulary.load(options.target_model)
    found = []
    for behaviour, mode, rtt, dead in cases:
        robot = VirtualRobot(scene, timelines, mode, rtt / 1e3, objects, dead)
        found.append(run_acting(scene, behaviour, BEHAVIOURS[behaviour], robot, options.max_actions))
    return found


@lru_cache(maxsize=1)
def _timelines(target: Path, draft: Path, timings: str, max_tokens: int, answers: str) -> Timelines:
    # Bars of single recordings would run over the bar of the episodes.
    os.environ["TQDM_DISABLE"] = "1"
    exits = target.parent / "exits"
    models = Models.load(target, draft, exits=exits if exits.is_dir() else None)
    with World(scene_of(FIRST_SEED, "easy", "")) as world:
        first = Question("find the silver bottle", encode_jpeg(world.render()))
    return Timelines(models, load_timings(timings), max_tokens, first, answers)
