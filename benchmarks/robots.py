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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from cloud_verifier.policies import POLICIES
from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from speculation.progress import progress
from speculation.vlm.load import load_vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.cpu_cores import Cores, described, placed
from vlm_nav_evaluation.experiment.fleets import drive, figures
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.options import several, whole_numbers
from vlm_nav_evaluation.plots import COLOURS, MARKERS, SMALL, add_outputs, keep, new_figure, plain
from vlm_nav_evaluation.results import mark_busy
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.verifier_process import CONNECT_LIMIT_S, verifier, verifier_flags

PLAIN_POLICY = "fcfs"
ROBOTS, QUICK_ROBOTS = "1,2,4,8", "2"
STEPS, QUICK_STEPS = 3, 1
ROUNDS = 3
QUICK_POLICIES = (PLAIN_POLICY, "full_budget")
WAITING = dict.fromkeys(("static_batch", "pipeline"), ("--collect-s", "0.1"))
"""These wait about as long as a pass: without waiting they would be first come, first served."""
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


def arms_of(policies: Sequence[str]) -> list[Arm]:
    """Return the arms: decoding alone, and drafting robots under each policy of the verifier, the plain one first."""
    cloud, full = Mode.CLOUD.value, Mode.FULL.value
    every = dict.fromkeys((PLAIN_POLICY, *policies))
    return [
        Arm(cloud, cloud, {"policy": PLAIN_POLICY}),
        *(Arm(f"{full} {policy}", full, {"policy": policy}) for policy in every),
    ]


def summarised(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
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
                entry[name] = spread([fleet[arm]["tokens_per_s"] / fleet[base]["tokens_per_s"] for fleet in rounds])
        found[arm] = entry
    return found


def measure(
    options: argparse.Namespace, before: Question, asked: Sequence[Question], truths: Sequence[Answer]
) -> dict[str, dict[str, Any]]:
    """Return every arm's figures by the number of robots."""
    arms, vlm = arms_of(options.policies), load_vlm(options.draft_model, dtype=options.dtype)
    own = [*verifier_flags(options), "--max-batch", str(options.max_batch)]
    own += ["--max-sessions", str(2 * max(options.robots))]
    rounds: dict[int, list[dict[str, dict[str, Any]]]] = {robots: [] for robots in options.robots}
    with ExitStack() as stack:
        with placed(cores(), verifier=True):
            addresses = {}
            for policy in dict.fromkeys(arm.changes["policy"] for arm in arms):
                flags = (*own, "--policy", policy, *WAITING.get(policy, ()))
                addresses[policy] = stack.enter_context(verifier(options.target_model, *flags))
        stack.enter_context(placed(cores()))
        turns = list(itertools.product(range(options.rounds), options.robots))
        for number, robots in progress(turns, unit="round"):
            found = {}
            for arm in random.Random(f"{options.seed} {number} {robots}").sample(arms, len(arms)):
                config = edge_config(options, addresses[arm.changes["policy"]], mode=arm.mode)
                with ExitStack() as links:
                    edges = [links.enter_context(closing(EdgeDecoder(config, vlm=vlm))) for _ in range(robots)]
                    for edge in edges:
                        edge.connect(CONNECT_LIMIT_S)
                    served = drive(edges, asked, before, options.steps)
                found[arm.name] = figures(served, options.steps, [truth.tokens for truth in truths])
            rounds[robots].append({arm.name: found[arm.name] for arm in arms})
    return {str(robots): summarised(fleets) for robots, fleets in rounds.items()}


def cores() -> Cores:
    """Return where robots and verifier run: on halves of the cores, where there are two."""
    return Cores.SPLIT if len(os.sched_getaffinity(0)) > 1 else Cores.ONE


def plot(by_robots: Mapping[str, Mapping[str, Mapping[str, Any]]], profile: str) -> Figure:
    """Return tokens per second and the slow steps over the number of robots."""
    figure = new_figure(5.2)
    panels = figure.subplots(1, 2)
    numbers = [int(count) for count in by_robots]
    for colour, marker, arm in zip(COLOURS, MARKERS, next(iter(by_robots.values())), strict=False):
        for axes, name in zip(panels, ("tokens_per_s", "step_p95_s"), strict=True):
            spreads = [by_robots[count][arm][name] for count in by_robots]
            axes.plot(numbers, [each["median"] for each in spreads], f"{marker}-", color=colour, label=arm)
            low, high = ([each[end] for each in spreads] for end in ("min", "max"))
            axes.fill_between(numbers, low, high, color=colour, alpha=0.15, linewidth=0)
    labels = ("tokens a second, all robots", "95 % of steps within, s")
    for axes, label in zip(panels, labels, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(count) for count in numbers])
        axes.set_ylim(bottom=0.0)
        axes.set(xlabel="robots", ylabel=label)
        plain(axes)
    lines, names = panels[0].get_legend_handles_labels()
    title = f"profile {profile}; shaded: least and most of the rounds"
    figure.legend(lines, names, loc="outside upper center", ncols=3, fontsize=SMALL, title=title, title_fontsize=SMALL)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("profile", "drafting", "fed_head", "predictor")
    line = command.experiment_line("benchmarks.robots", __doc__, STEPS, edge, QUICK_STEPS)
    line.add_argument("--policies", type=several(list(POLICIES)), help=f"of the verifier, beside "
                      f"{PLAIN_POLICY}, which always runs (default: all; --quick: {QUICK_POLICIES[-1]})")  # fmt: skip
    line.add_argument("--robots", help=f"fleets, e.g. 1,4,16 (default: {ROBOTS}; --quick: {QUICK_ROBOTS})")
    line.add_argument("--rounds", type=int, help=f"of all arms with each fleet (default: {ROUNDS}, 1 with --quick)")
    line.add_argument("--max-batch", type=int, default=16, help="robots in one forward (default: %(default)s)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> int:
    """Run the benchmark and return 1 where an answer is wrong in float64, where there are no near ties, else 0.

    Raises ValueError or RuntimeError, in one sentence, where it cannot.
    """
    mark_busy(options)
    quick = options.quick
    options.steps = options.steps or (QUICK_STEPS if quick else STEPS)
    options.robots = whole_numbers("--robots", options.robots or (QUICK_ROBOTS if quick else ROBOTS), MOST_ROBOTS)
    options.rounds = options.rounds or (1 if quick else ROUNDS)
    options.policies = options.policies or [each for each in POLICIES if not quick or each in QUICK_POLICIES]
    (before,), asked = warmed_up(options, max(options.steps, min(options.robots[-1], 2 * options.steps)), 1)
    target = ModelAlone(load_vlm(options.target_model, dtype=options.dtype), options.max_tokens)
    truths = [target.decode(question) for question in asked]
    print(
        f"{command.described(options)}; a fleet runs until one robot has {options.steps} answers; {options.rounds} "
        f"rounds: median (min-max)\n{described(cores())}: a real robot brings a computer of its own; where a forward "
        "takes longer than is declared, this machine was too slow for so many robots"
    )
    by_robots = measure(options, before, asked, truths)
    for count, entries in by_robots.items():
        print("\n" + figures_table(f"{count} robots", entries, COLUMNS))
    every = [entry for entries in by_robots.values() for entry in entries.values()]
    answers, wrong = (sum(int(entry[name]) for entry in every) for name in ("answers", "wrong"))
    print(f"\nanswers that are not the target's own: {wrong} of {answers}")
    keep(plot(by_robots, options.profile), f"robots_{options.profile}", options)
    command.finish(options, "robots", {"answers": answers, "wrong": wrong, "robots": by_robots})
    return int(wrong > 0 and options.dtype == "float64")


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
