"""WISP's setting: how many robots one verifier serves at a promised token speed, and what it commits.

Robots draft 50 tokens a second and ask again at once; a request violates its class where its end-to-end token speed,
prefill and queue included, is below it. By default fleets of one class are searched for their capacity, over three
seeds, and mixed fleets are run under several loads, with one. `--mixed` has all four classes in one fleet, as large as
the paper's capacities (its Table 2), and three seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cloud_verifier.config import Scheduling
from speculation.pass_cost import PAPER_COSTS, PassCost
from speculation.progress import progress
from speculation.service_classes import BATCH as BATCH_CLASS
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import Idle
from vlm_nav_evaluation.fleet.figures import Figures, Window, capacity, run
from vlm_nav_evaluation.fleet.systems import Drafting, Setting, System, Times
from vlm_nav_evaluation.fleet.workload import FIXED_K, Workload
from vlm_nav_evaluation.parallel import run_parallel
from vlm_nav_evaluation.plots import COLOURS, HATCHES, MARKERS, SMALL, new_figure
from vlm_nav_evaluation.tables import Column, figures_table, table

BATCH = 256
COSTS = {
    "appendix C": PAPER_COSTS["wisp-32b"],
    "main text": PAPER_COSTS["wisp-32b-main"],
    "14B": PassCost(33.14e-6 * 14.8 / 32.8, 34.5e-9 * 40 * 40 / (64 * 64), 4.62e-6 * 40 / 64, 14.86e-3 * 40 / 64),
}
"""Qwen3-32B on an A100: Table 12, and Sec. 4.4 with Table 12's constant, which the text leaves out. The paper prints no
coefficients of Qwen3-14B: Table 12's by its parameters, by heads and layers, and twice by layers."""
MIXED: dict[str, dict[str, tuple[int, ...]]] = {
    "appendix C": {"sled": (21, 27, 42, 83), "fcfs": (142, 164), "wisp": (142, 164)},
    "14B": {"fcfs": (245,), "wisp": (245,)},
}
"""Robots of mixed fleets, by coefficients and system: capacities that Table 2 prints, for `fcfs` WISP's."""
MIXED_WORKLOAD = Workload(prompt=(104, 328), answer=(64, 192))
"""The paper prints no lengths. With these SLED, which computes its prefix in every pass, carries the 21 robots at 8
tokens a second that Table 2 prints; with those of `Workload` 13, whatever its batch, its wait and its drafts."""
MIXED_RATES = {"sled": 190.0, "appendix C": 700.0, "14B": 1400.0}
"""About how many tokens a second a mixed fleet commits, which says how long its window must be."""
SEEDS, REQUESTS = 3, 170
"""So many seeds are pooled, and the window of each has about so many requests."""
ALLOWED = (0.01, 0.05)
CLASSES = tuple(name for name in SERVICE_CLASSES if name != BATCH_CLASS.name)
SEARCHED = ("responsive", "interactive")
"""Classes whose capacity is searched: those that the paper has, too."""
QUICK = Workload(prompt=(32, 96), answer=(32, 96))
"""The workload of a quick look."""
LOADS = (64, 128, 192, 256)
LIKELY = {"sled": 14, "central": 58, "fcfs": 116, "fcfs, ahead": 138, "wisp": 105}
"""Robots at 8 tokens a second with which the search for a capacity begins."""
BEGIN_S, LEAST_S = 12.0, 10.0
"""When a window begins, and how long it is at least."""
NEAR = 0.06
"""Share of the capacity at which the search for it ends. Some 510 requests decide each step, so that this is no error
bound."""


def systems() -> dict[str, System]:
    """Return what is compared, by name."""
    fixed, stopped = Drafting(FIXED_K), Drafting(8, predictor=True)
    grows = Drafting(4, ahead=True, most=10)

    def policy(name: str, **more: Any) -> Scheduling:
        return Scheduling(name, max_batch=more.pop("max_batch", BATCH), hint_tokens=0, **more)

    every = (
        System("sled", policy("static_batch", max_batch=8, collect_s=0.1), drafting=fixed, cached=False),
        System("central", policy("fcfs"), Idle.DECODE),
        System("fcfs", policy("fcfs"), drafting=stopped),
        System("fcfs, ahead", policy("fcfs"), drafting=grows),
        System("wisp", policy("wisp"), drafting=stopped),
        System("full_budget", policy("full_budget"), drafting=grows),
    )
    return {each.name: each for each in every}


LOOKS = ("central", "full_budget", "wisp", "fcfs", "sled", "fcfs, ahead")
"""The plot gives its colours, markers and hatches to the systems in this order."""
NEEDED = ("central", "full_budget")
"""What ratios are taken of."""
MEANING = {
    "sled": f"static batches of 8 (100 ms), {FIXED_K} draft tokens, no cache",
    "central": "robots do not draft: continuous batching, first come first served",
    "fcfs": "robots draft up to 8 tokens, predictor; first come first served",
    "fcfs, ahead": "first come first served with the drafts of full_budget: what of its lead they are",
    "wisp": "drafts of up to 8 tokens, predictor; WISP's policy",
    "full_budget": "ours: drafts of 4 tokens that grow to 10 while they wait, one budget of draft tokens",
}


def times_of(cost: str) -> Times:
    """Return a coefficient set's times."""
    return Times(f"WISP, {cost}", COSTS[cost])


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --cost and --mixed."""
    line.add_argument("--cost", choices=list(COSTS), default="appendix C", help="WISP's coefficients (%(default)s)")
    line.add_argument("--mixed", action="store_true", help="only mixed fleets as large as the paper's, 3 seeds")


def window_of(robots: int, classes: Sequence[str], workload: Workload) -> Window:
    """Return a window in which about `REQUESTS` requests begin if all have just the speed of their class."""
    speed = robots * sum(SERVICE_CLASSES[name].tokens_per_s for name in classes) / len(classes)
    tokens = REQUESTS * (workload.answer[0] + workload.answer[1]) / 2.0
    return Window(BEGIN_S, BEGIN_S + max(LEAST_S, tokens / speed))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of the setting; a quick look has the systems that ratios need, and the fastest class."""
    if options.mixed:
        return measure_mixed(options)
    quick, jobs, seed = options.quick, options.jobs, options.seed
    workload = replace(QUICK if quick else Workload(), seed=seed)
    window = Window(2.0, 5.0) if quick else None
    chosen = {name: each for name, each in systems().items() if name in NEEDED or not quick}
    times = times_of(options.cost)
    classes = SEARCHED[-1:] if quick else SEARCHED
    cells = [
        (
            Setting(system, times, workload, (name,)),
            window,
            range(seed, seed + (1 if quick else SEEDS)),
            0.3 if quick else NEAR,
        )
        for name in classes
        for system in chosen.values()
    ]
    found = progress(run_parallel(capacity_cell, cells, jobs), total=len(cells), desc="capacity", unit="run")
    each_capacity = iter(found)
    by_class = {name: {system: next(each_capacity) for system in chosen} for name in classes}
    capacities = {system: {name: by_class[name][system] for name in classes} for system in chosen}
    loads = (32, 96) if quick else LOADS
    curves = [(Setting(system, times, workload, CLASSES), robots, seed, window or window_of(robots, CLASSES, workload))
              for system in chosen.values() for robots in loads]  # fmt: skip
    found_runs = iter(progress(run_parallel(run, curves, jobs), total=len(curves), desc="load", unit="run"))
    load = {system: {robots: asdict(next(found_runs)) for robots in loads} for system in chosen}
    return {
        "name": "wisp" if options.cost == "appendix C" else f"wisp_{options.cost.replace(' ', '_')}",
        "cost": options.cost,
        "times": asdict(times),
        "workload": asdict(workload),
        "requests": REQUESTS,
        "seeds": 1 if quick else SEEDS,
        "near": 0.3 if quick else NEAR,
        "systems": {name: MEANING[name] for name in chosen},
        "capacity": capacities,
        "load": load,
        "ratios": ratios(capacities, load),
    }


def measure_mixed(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of every seed of the mixed fleets, by coefficients, system and number of robots."""
    names = [(cost, system, robots) for cost, each in MIXED.items() for system, fleet in each.items()
             for robots in (fleet[:1] if options.quick else fleet)]  # fmt: skip
    seeds = 1 if options.quick else SEEDS
    cells = [mixed_run(*name, options.seed + seed, options.quick) for name in names for seed in range(seeds)]
    runs = list(progress(run_parallel(run, cells, options.jobs), total=len(cells), desc="mixed", unit="run"))
    found: dict[str, dict[str, dict[int, list[dict[str, Any]]]]] = {}
    for place, (cost, system, robots) in enumerate(names):
        mine = runs[place * seeds : (place + 1) * seeds]
        found.setdefault(cost, {}).setdefault(system, {})[robots] = [asdict(each) for each in mine]
    return {
        "name": "wisp_mixed",
        "times": {cost: asdict(times_of(cost)) for cost in found},
        "workload": asdict(MIXED_WORKLOAD),
        "systems": {name: MEANING[name] for each in found.values() for name in each},
        "mixed": found,
    }


def mixed_run(cost: str, system: str, robots: int, seed: int, quick: bool) -> tuple[Setting, int, int, Window]:
    """Return the arguments of `run` for one seed of a mixed fleet; requests differ by seed, too."""
    workload = replace(MIXED_WORKLOAD, seed=seed)
    rate = MIXED_RATES.get(system, MIXED_RATES[cost])
    tokens = REQUESTS * sum(workload.answer) / 2.0
    window = Window(1.0, 3.0) if quick else Window(BEGIN_S, BEGIN_S + tokens / rate)
    return Setting(systems()[system], times_of(cost), workload, CLASSES), robots, seed, window


def mean_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of a fleet over its seeds: the sum of the requests, and means of all else."""
    names = ("goodput", "tokens_per_pass", "rows", "pass_s", "queue_s")
    # Under some seeds no request of a class may count.
    late = {name: [each["by_class"][name] for each in runs if name in each["by_class"]] for name in CLASSES}
    return {
        "requests": sum(each["requests"] for each in runs),
        "each": mean(each["goodput"] / each["robots"] for each in runs),
        "by_class": {name: mean(shares) for name, shares in late.items() if shares},
        **{name: mean(each[name] for each in runs) for name in names},
    }


def capacity_cell(setting: Setting, window: Window | None, seeds: Sequence[int], near: float) -> dict[str, Any]:
    """Return the largest fleets with 1 % and 5 % of violations, and the figures of the latter, over all seeds.

    window: None for one of about `REQUESTS` requests. Runs end once more than the largest share of all is late; their
    violations are None then, as the share that whole runs would have is not known.
    """
    seen: dict[int, list[Figures]] = {}
    enough = ALLOWED[-1] * len(seeds)

    def late(runs: Sequence[Figures]) -> float:
        """Return the share of all requests; 1 where a run was broken off, whose own share is not known."""
        if any(each.violations > enough for each in runs):
            return 1.0
        return sum(each.violations * each.requests for each in runs) / max(1, sum(each.requests for each in runs))

    def violations(robots: int) -> float:
        if robots not in seen:
            within, runs = window or window_of(robots, setting.classes, setting.workload), list[Figures]()
            for seed in seeds:
                requests = replace(setting.workload, seed=seed)
                runs.append(run(replace(setting, workload=requests), robots, seed, within, enough=enough))
                if runs[-1].violations > enough:
                    break
            seen[robots] = runs
        return late(seen[robots])

    speed = max(SERVICE_CLASSES[name].tokens_per_s for name in setting.classes)
    guess = round(LIKELY.get(setting.system.name, 150) * SERVICE_CLASSES[CLASSES[-1]].tokens_per_s / speed)
    most: list[int] = []
    for allowed in ALLOWED:
        most.append(capacity(violations, allowed, guess=most[-1] if most and most[-1] else guess, near=near))
    shares = {robots: late(runs) for robots, runs in sorted(seen.items())}
    return {
        "robots": most,
        "figures": mean_of([asdict(each) for each in seen[most[-1]]]) if most[-1] else None,
        "violations": {robots: share if share <= ALLOWED[-1] else None for robots, share in shares.items()},
    }


def ratios(capacities: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return full_budget over centralised: capacity by class (5 %), and the highest goodput over all loads.

    None to SLED, which with these lengths and 5 % carries fewer robots than the paper prints.
    """
    highest = peaks(load)
    found: dict[str, float] = {}
    for name, own in capacities["full_budget"].items():
        other = capacities["central"][name]["robots"][-1]
        found[f"capacity {name}"] = own["robots"][-1] / other if other else float("inf")
    return {"central": found | {"goodput": highest["full_budget"] / highest["central"]}}


def peaks(load: Mapping[str, Any]) -> dict[str, float]:
    """Return every system's highest goodput over all loads."""
    return {system: max(each["goodput"] for each in runs.values()) for system, runs in load.items()}


LOAD_COLUMNS = (
    Column("goodput", "goodput", ".0f"),
    *(Column(f"late % {SERVICE_CLASSES[name].tokens_per_s:g}/s", f"by_class.{name}", ".1f", 100.0) for name in CLASSES),
    Column("tau", "tokens_per_pass"),
    Column("rows/pass", "rows", ".1f"),
    Column("pass ms", "pass_s", ".0f", 1e3),
    Column("queue ms", "queue_s", ".0f", 1e3),
    Column("scheduling us", "deciding_us", ".0f"),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    if "mixed" in data:
        return mixed_report(data)
    parts = [
        f"WISP's setting, coefficients of {data['cost']}: {data['times']['cost']}",
        f"workload: {data['workload']}; about {data['requests']} requests a run, of which all count that began behind "
        f"{BEGIN_S:g} s (not with --quick); {data['seeds']} seeds for a capacity, whose search ends "
        f"{100 * data['near']:g} % from the next number that failed, one for the loads",
        "assumed, not in the paper: prompts and answers, a round trip of 20 ms, robots ask again at once, estimates "
        "are right, no limit of memory",
        "\n".join(f"  {name}: {meaning}" for name, meaning in data["systems"].items()),
        "\nrobots with at most 1 % / 5 % of requests too slow, all of one class",
        capacity_table(data["capacity"]),
        "\nmixed classes, by number of robots",
        figures_table(
            "system, robots",
            {f"{system}, {robots}": each for system, runs in data["load"].items() for robots, each in runs.items()},
            LOAD_COLUMNS,
        ),
        "\nhighest goodput: " + ", ".join(f"{name} {value:.0f}" for name, value in peaks(data["load"]).items()),
        *(
            f"full_budget over {base}: " + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in found.items())
            for base, found in data["ratios"].items()
        ),
    ]  # fmt: skip
    return "\n".join(parts)


def mixed_report(data: Mapping[str, Any]) -> str:
    """Return the table of the mixed fleets in words."""
    rows = {
        f"{cost}: {system}, {robots}": mean_of(runs)
        for cost, each in data["mixed"].items()
        for system, fleets in each.items()
        for robots, runs in fleets.items()
    }
    columns = (Column("requests", "requests", ".0f"), Column("tokens/s each", "each"), *LOAD_COLUMNS[:-1])
    return "\n".join([
        f"WISP's setting, mixed classes, {SEEDS} seeds; workload: {data['workload']}",
        *(f"  {name}: {meaning}" for name, meaning in data["systems"].items()),
        figures_table("coefficients: system, robots", rows, columns),
    ])  # fmt: skip


def capacity_table(capacities: Mapping[str, Any]) -> str:
    """Return capacities by system and class."""
    names = list(next(iter(capacities.values())))
    header = ("system", *(f"{SERVICE_CLASSES[name].tokens_per_s:g} tokens/s" for name in names))
    rows = [(system, *(" / ".join(map(str, by_class[name]["robots"])) for name in names))
            for system, by_class in capacities.items()]  # fmt: skip
    return table(header, rows)


def plot(data: Mapping[str, Any]) -> Figure:
    """Return capacity by class, and violations and goodput by the number of robots."""
    figure = new_figure(10.0)
    above, left, right = figure.subplot_mosaic("AA\nLR").values()
    classes = list(next(iter(data["capacity"].values())))
    width = 0.8 / len(data["capacity"])
    for place, (system, by_class) in enumerate(data["capacity"].items()):
        at = np.arange(len(classes)) + (place - (len(data["capacity"]) - 1) / 2) * width
        values, look = [by_class[name]["robots"][-1] for name in classes], LOOKS.index(system)
        above.bar(at, values, width, color=COLOURS[look], hatch=HATCHES[look], edgecolor="white", label=system)
    names = [f"{SERVICE_CLASSES[name].tokens_per_s:g} tokens/s" for name in classes]
    above.set_xticks(range(len(classes)), names)
    above.set_ylabel("robots with at most 5 % too slow")
    above.margins(y=0.3)
    above.legend(ncols=3, fontsize=SMALL)
    for system, runs in data["load"].items():
        robots = [int(each) for each in runs]
        look = LOOKS.index(system)
        style: dict[str, Any] = {"color": COLOURS[look], "marker": MARKERS[look]}
        left.plot(robots, [100 * each["violations"] for each in runs.values()], **style)
        right.plot(robots, [each["goodput"] for each in runs.values()], **style, label=system)
    right.legend(fontsize=SMALL)
    left.set(xlabel="robots, mixed classes", ylabel="requests too slow, %")
    right.set(xlabel="robots, mixed classes", ylabel="committed tokens/s")
    return figure
