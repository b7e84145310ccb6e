"""One verifier, many robots, on this machine: real sockets, one verifier process a policy, real models.

Every robot asks its next question as soon as the last one is answered, each about other frames. The robots share one
process and one draft model, which keeps no state of its own between them; they get one half of the cores, the verifier
the other, so that drafts never slow verifications down. A robot brings a computer of its own and here many share a
core: the columns of a draft forward and of a pass show what that does, with declared times too.

Arms take turns, one fleet after another, in an order that is shuffled for each round; ratios are within a round.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from cloud_verifier.policies import POLICIES
from edge_drafter import DecodingStats, Mode
from edge_drafter.decoder import EdgeDecoder
from evaluation.experiment import command
from evaluation.experiment.alone import TargetAlone
from evaluation.experiment.questions import in_words, text_flags, warmed_up
from evaluation.experiment.run import Question
from evaluation.experiment.sockets import edge_config
from evaluation.figures import spread
from evaluation.plots import COLOURS, add_outputs, keep, new_figure, plain
from evaluation.setting import CONNECT_LIMIT_S, several, verifier
from evaluation.tables import MS, Column, figures_table
from speculation.profiles import load_profile
from speculation.vlm.load import Vlm, load_vlm

PLAIN_POLICY = "fcfs"
ROBOTS, QUICK_ROBOTS = (1, 2, 4, 8, 16), (4,)
STEPS, QUICK_STEPS = 3, 1
ROUNDS = 3
QUICK_POLICIES = (PLAIN_POLICY, "full_budget")
PROFILES = ("raw", "go2_a100_scaled")
MOST_ROBOTS = 64
COLUMNS = (
    Column("tokens/s", "tokens_per_s", ".0f"),
    Column("x cloud", "to_cloud", ".2f"),
    Column("x full fcfs", "to_fcfs", ".2f"),
    Column("p50 step ms", "step_p50_s", ".0f", MS),
    Column("p95 step ms", "step_p95_s", ".0f", MS),
    Column("passes/token", "passes_per_token"),
    Column("ms/pass", "pass_s", ".1f", MS),
    Column("queue ms/pass", "queue_s", ".1f", MS),
    Column("ms/draft forward", "draft_forward_s", ".1f", MS),
    Column("slowest robot", "least_share", ".0%"),
    Column("busy", "busy", ".0f"),
    Column("wrong", "wrong", ".0f"),
)
LINE_COLOURS = ("#e45756", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#eeca3b", "#9c755f")


@dataclass(frozen=True)
class FleetArm:
    """One way to serve a fleet: all robots in a mode, the verifier under a policy."""

    mode: str
    policy: str

    @property
    def name(self) -> str:
        """How tables call it."""
        return self.mode if self.mode == Mode.CLOUD.value else f"{self.mode} {self.policy}"


@dataclass(frozen=True)
class Served:
    """One answer that one robot got; times are seconds of one clock."""

    robot: int
    question: int
    began: float
    ended: float
    tokens: tuple[int, ...]
    stats: DecodingStats


def arms_of(policies: Sequence[str]) -> list[FleetArm]:
    """Return the arms: decoding alone, and drafting robots under each policy, the plain one first."""
    rest = [policy for policy in policies if policy != PLAIN_POLICY]
    return [FleetArm(Mode.CLOUD.value, PLAIN_POLICY), *(FleetArm(Mode.FULL.value, p) for p in (PLAIN_POLICY, *rest))]


def split_cores(cores: Collection[int]) -> tuple[set[int], set[int]]:
    """Return the cores of the robots and those of the verifier: halves, or the same one where there is only one."""
    ranked = sorted(cores)
    half = len(ranked) // 2
    return (set(ranked[:half]), set(ranked[half:])) if half else (set(ranked), set(ranked))


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Keep this thread on these cores, and the processes and threads that it starts meanwhile for good."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def window(served: Sequence[Served], steps: int) -> tuple[float, float]:
    """Return when the first robot began and when the first one had `steps` answers: in between, all were at work.

    Raises ValueError where no robot has so many.
    """
    answers: dict[int, list[Served]] = {}
    for each in sorted(served, key=lambda each: each.ended):
        answers.setdefault(each.robot, []).append(each)
    ends = [own[steps - 1].ended for own in answers.values() if len(own) >= steps]
    if not ends:
        raise ValueError(f"no robot has {steps} answers")
    return min(each.began for each in served), min(ends)


def tokens_within(served: Sequence[Served], until: float) -> float:
    """Return the tokens that came before a time; of an answer under way the share of its time that had passed."""
    return sum(
        len(each.tokens) * min(1.0, (until - each.began) / (each.ended - each.began))
        for each in served
        if each.began < until
    )


def figures(served: Sequence[Served], steps: int, truths: Sequence[tuple[int, ...]]) -> dict[str, float | None]:
    """Return the figures of one fleet: rates within the `window`, times of the answers that began in it.

    A pass is one target forward as a robot sees it: one that several robots share counts for each of them.
    `least_share`: the tokens of the slowest robot over a fair share.
    """
    began, until = window(served, steps)
    seconds, inside = until - began, [each for each in served if each.began < until]
    robots = {each.robot for each in served}
    by_robot = [tokens_within([each for each in inside if each.robot == robot], until) for robot in robots]
    tokens = sum(len(each.tokens) for each in inside)
    stats = DecodingStats()
    for each in inside:
        stats.add(each.stats)
    times = [each.ended - each.began for each in inside]
    forwards = stats.draft_forwards
    return {
        "tokens_per_s": sum(by_robot) / seconds,
        "step_p50_s": float(np.percentile(times, 50)),
        "step_p95_s": float(np.percentile(times, 95)),
        "passes_per_token": stats.cloud_passes / tokens,
        "pass_s": stats.server_compute_s / stats.cloud_passes,
        "queue_s": stats.server_queue_s / stats.cloud_passes,
        "draft_forward_s": (stats.draft_s + stats.predraft_s) / forwards if forwards else None,
        "least_share": min(by_robot) * len(robots) / sum(by_robot),
        "busy": float(stats.busy),
        "wrong": float(sum(each.tokens != truths[each.question] for each in served)),
        "answers": float(len(served)),
    }


def summarised(rounds: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, Any]]:
    """Return every arm's figures over rounds: spreads, sums of what is counted, ratios of rates round by round."""
    found: dict[str, dict[str, Any]] = {}
    for arm in rounds[0]:
        own = [fleet[arm] for fleet in rounds]
        entry: dict[str, Any] = {}
        for name in own[0]:
            values = [value for each in own if (value := each[name]) is not None]
            counted = name in ("busy", "wrong", "answers")
            entry[name] = (sum(values) if counted else spread(values)) if values else None
        for name, base in (("to_cloud", Mode.CLOUD.value), ("to_fcfs", f"{Mode.FULL.value} {PLAIN_POLICY}")):
            if base in rounds[0] and arm != base:
                entry[name] = spread([rate(fleet[arm]) / rate(fleet[base]) for fleet in rounds])
        found[arm] = entry
    return found


def rate(entry: Mapping[str, float | None]) -> float:
    """Return the tokens per second of a fleet's figures."""
    return entry["tokens_per_s"] or 0.0


def drive(edges: Sequence[EdgeDecoder], asked: Sequence[Question], before: Question, steps: int) -> list[Served]:
    """Let every edge answer questions in a thread of its own until one of them has answered `steps`.

    Each begins elsewhere among the questions. Raises what decoding raises, in any of the threads.
    """
    start, over = threading.Barrier(len(edges)), threading.Event()

    def robot(index: int, edge: EdgeDecoder) -> list[Served]:
        served: list[Served] = []
        try:
            edge.decode(before.prompt, before.jpeg)
            start.wait()
            while not (served and over.is_set()):
                place = (index * len(asked) // len(edges) + len(served)) % len(asked)
                began = time.perf_counter()
                result = edge.decode(asked[place].prompt, asked[place].jpeg)
                served.append(Served(index, place, began, time.perf_counter(), result.tokens, result.stats))
                if len(served) >= steps:
                    over.set()
        except Exception:
            over.set()
            start.abort()
            raise
        return served

    with ThreadPoolExecutor(len(edges)) as pool:
        futures = [pool.submit(robot, index, edge) for index, edge in enumerate(edges)]
    problems = [error for future in futures if (error := future.exception()) is not None]
    for error in problems:
        # The others only found the barrier broken.
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [each for future in futures for each in future.result()]


def fleet(
    options: argparse.Namespace, arm: FleetArm, profile: str, address: str, vlm: Vlm, robots: int,
    before: Question, asked: Sequence[Question],
) -> list[Served]:  # fmt: skip
    """Return what a fleet of robots got; their links are made for it and closed again."""
    config = edge_config(options, address, mode=arm.mode, profile=profile)
    with ExitStack() as stack:
        edges = [stack.enter_context(closing(EdgeDecoder(config, vlm=vlm))) for _ in range(robots)]
        for edge in edges:
            edge.connect(CONNECT_LIMIT_S)
        return drive(edges, asked, before, options.steps)


def measure(
    options: argparse.Namespace, profile: str, vlm: Vlm, before: Question, asked: Sequence[Question],
    truths: Sequence[tuple[int, ...]],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return, by the number of robots, every arm's figures under one profile."""
    arms = arms_of(options.policies)
    own = ["--profile", profile, "--dtype", options.dtype, "--threads", "1", *text_flags(in_words(options.frames))]
    own += ["--max-sessions", str(2 * max(options.robots)), "--max-batch", str(options.max_batch)]
    robot_cores, verifier_cores = split_cores(os.sched_getaffinity(0))
    with ExitStack() as stack:
        with pinned(verifier_cores):
            addresses = {
                policy: stack.enter_context(verifier(options.target_model, *own, "--policy", policy))
                for policy in dict.fromkeys(arm.policy for arm in arms)
            }
        stack.enter_context(pinned(robot_cores))
        rounds: dict[int, list[dict[str, dict[str, float | None]]]] = {robots: [] for robots in options.robots}
        turns = list(itertools.product(range(options.rounds), options.robots))
        for number, robots in tqdm(turns, desc=profile, unit="round", disable=None):
            found = {}
            for arm in random.Random(f"{options.seed} {number} {robots}").sample(arms, len(arms)):
                served = fleet(options, arm, profile, addresses[arm.policy], vlm, robots, before, asked)
                found[arm.name] = figures(served, options.steps, truths)
            rounds[robots].append({arm.name: found[arm.name] for arm in arms})
    return {str(robots): summarised(fleets) for robots, fleets in rounds.items()}


def plot(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Return tokens per second and the slow steps over the number of robots, a row of plots for each profile."""
    figure = new_figure(3.6 * len(results))
    panels = figure.subplots(len(results), 2, squeeze=False)
    for row, (profile, by_robots) in zip(panels, results.items(), strict=True):
        counts = [int(count) for count in by_robots]
        arms = list(next(iter(by_robots.values())))
        colours = iter(LINE_COLOURS)
        for arm in arms:
            colour = COLOURS[arm] if arm in COLOURS else next(colours)
            for axes, name in zip(row, ("tokens_per_s", "step_p95_s"), strict=True):
                spreads = [by_robots[count][arm][name] for count in by_robots]
                axes.plot(counts, [each["median"] for each in spreads], "o-", color=colour, label=arm, ms=4)
                low, high = ([each[end] for each in spreads] for end in ("min", "max"))
                axes.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
        for axes, label in zip(
            row, ("tokens per second, all robots", "95th percentile of a step, seconds"), strict=True
        ):
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set_ylim(bottom=0.0)
            axes.set_xlabel("robots")
            axes.set_ylabel(label)
            axes.set_title(f"profile {profile}", fontsize=11)
            plain(axes)
        row[0].legend(fontsize=8)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    quick = f"{QUICK_STEPS} with --quick"
    line = command.experiment_line(
        "benchmarks.robots", __doc__, None, steps_default=f"{STEPS}, {quick}", journal=False, drafting=True,
        predictor=True, save=False,
    )  # fmt: skip
    line.add_argument(
        "--profiles", type=several(PROFILES), help=f"of {','.join(PROFILES)} (default: both, --quick: raw)"
    )
    line.add_argument("--policies", type=several(list(POLICIES)), help=f"of the verifier, beside "
                      f"{PLAIN_POLICY}, which always runs (default: all; --quick: {QUICK_POLICIES[-1]})")  # fmt: skip
    line.add_argument("--robots", type=counts, help="fleets, e.g. 1,4,16 (default: 1,2,4,8,16; --quick: 4)")
    line.add_argument("--rounds", type=int, help=f"of all arms with each fleet (default: {ROUNDS}, 1 with --quick)")
    line.add_argument("--max-batch", type=int, default=16, help="robots in one forward (default: %(default)s)")
    add_outputs(line)
    return line


def counts(text: str) -> list[int]:
    """Read comma-separated numbers of robots, ascending, each once; an argparse type."""
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_ROBOTS for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from 1 to {MOST_ROBOTS}, e.g. 1,4,16")
    return sorted({int(word) for word in words})


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    quick = options.quick
    options.steps = options.steps or (QUICK_STEPS if quick else STEPS)
    options.robots = options.robots or list(QUICK_ROBOTS if quick else ROBOTS)
    options.rounds = (1 if quick else ROUNDS) if options.rounds is None else options.rounds
    options.policies = options.policies or [each for each in POLICIES if not quick or each in QUICK_POLICIES]
    options.profiles = options.profiles or list(PROFILES[:1] if quick else PROFILES)
    if options.rounds < 1:
        raise ValueError(f"--rounds {options.rounds}: give at least 1")
    (before,), asked = warmed_up(options, max(options.steps, min(options.robots[-1], 2 * options.steps)), 1)
    target = TargetAlone(load_vlm(options.target_model, dtype=options.dtype, threads=1), options.max_tokens)
    truths = [target.decode(question).tokens for question in asked]
    vlm = load_vlm(options.draft_model, dtype=options.dtype, threads=1)
    print(f"{command.described(options)}; {options.rounds} rounds; a fleet runs until one robot has {options.steps} "
          "answers; median (min-max) over rounds")  # fmt: skip
    ours, theirs = split_cores(os.sched_getaffinity(0))
    print(f"all robots share {len(ours)} core(s) and one process, the verifier has {len(theirs)}: a real robot "
          "brings a computer of its own")  # fmt: skip
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in options.profiles:
        profile = load_profile(name)
        results[name] = measure(options, name, vlm, before, asked, truths)
        declared = "nothing declared" if profile.is_raw else (
            f"declared: {MS * profile.draft_s:g} ms a draft forward, {MS * profile.verify_s:g} ms a pass; where a "
            "column has more, this machine was too slow for so many robots"
        )  # fmt: skip
        print(f"\nprofile {name} ({declared})")
        for count, entries in results[name].items():
            print(figures_table(f"{count} robots", entries, COLUMNS) + "\n")
    every = [entry for fleets in results.values() for entries in fleets.values() for entry in entries.values()]
    wrong, answers = (sum(int(entry[name]) for entry in every) for name in ("wrong", "answers"))
    print(f"answers that are not the target's own: {wrong} of {answers}")
    keep(plot(results), "robots", options)
    command.finish(options, "robots", {"answers": answers, "wrong": wrong, "profiles": results})


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
