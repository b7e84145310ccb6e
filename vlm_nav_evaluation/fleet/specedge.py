"""SpecEdge's setting: a tree from each of 2 x batch robots in two cohorts, against a draft model on the server.

T_p 11 ms, T_q 60 ms (14B) or 94.2 ms (32B), a round trip of 14.07 ms, answers of 256 tokens, trees of 32. The server's
own drafts have the best depth of 1 to 12; robots draft (T_q - RTT) / T_p levels (Sec. 4.3). The prices are the paper's.
Figs. 8, 11 and 12 are parts, round trips and edge devices, every arm at its best depth.

What a verification commits depends on how well the draft model foresees the target, which no paper prints for these
pairs: see `candidates`. Every model of it but one is brought to the tokens a verification that the paper's server
commits, and all are reported.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cloud_verifier.config import Scheduling
from speculation.pass_cost import Load, PassCost
from speculation.profiles import load_profile
from speculation.progress import progress
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.fleet.candidates import MODELS, Candidates, tokens_of
from vlm_nav_evaluation.fleet.figures import Window, run
from vlm_nav_evaluation.fleet.systems import Drafting, Exit, Setting, System, Times
from vlm_nav_evaluation.parallel import run_parallel
from vlm_nav_evaluation.plots import COLOURS, HATCHES, MARKERS, PAPER, SMALL, new_figure, plain
from vlm_nav_evaluation.tables import Column, figures_table

TREE, DEPTHS, BATCHES = 32, tuple(range(1, 13)), (1, 2, 4, 8)
DEEPEST = 32
"""Levels of a tree of which nothing is left to gain."""
T_P, RTT = 0.011, 0.01407
WARM_S, WINDOW_S, LEAST_S = 8.0, 100.0, 6.0
"""Seconds before the figures are taken, and in which they are: of all robots together, and at least."""
EDGE_PRICE = 0.35
"""Dollars an hour of an RTX 4090."""
PROMPT, ANSWER = 96, 256
CONTEXT = PROMPT + ANSWER // 2
"""Mean tokens in the cache."""
GROWTH = PassCost(33.14e-6, 34.5e-9, 4.62e-6, 0.0)
"""What further rows and tokens add to a pass: WISP's Table 12, as this paper prints no T_q of a batch."""
EXIT = Exit(2, 0.40, 0.390)
"""Of the embedded pair, short list, 1,554 verifications (models/exits/measured.json): lead over the verdict, and how
often all of it is right."""
EXIT_COST = 0.018
"""What it adds to a pass, measured there."""


@dataclass(frozen=True)
class Pair:
    """A target and a draft model."""

    verify_s: float
    """T_q of one tree."""
    depth: int
    """Draft forwards of the paper's server: (tokens a verification / tokens a second - T_q) / T_p by Table 1."""
    server_price: float
    """Dollars an hour."""
    tokens: float
    """Tokens a verification of the paper's server at batch 1, mean over the six tasks of Table 1."""


PAIRS = {"Qwen3 32B/1.7B": Pair(0.0942, 7, 5.05, 4.10), "Qwen3 14B/1.7B": Pair(0.060, 6, 4.05, 3.81)}
EMBEDDED = "embedded"
AS_MEASURED = f"{EMBEDDED}, as measured"
"""The model that is brought to no printed figure."""
SERVER, SPECEDGE, OURS = "server_sd", "specedge", ("ours", "ours, exits")
ORACLE = "oracle"
"""Robots that know where each verdict will end: what no rule of drafting ahead can pass."""
COHORTS = "cohorts, no pre-drafts"
EDGES = (COHORTS, SPECEDGE, *OURS, ORACLE)
PLOTTED = (*OURS, SPECEDGE, ORACLE)
BASIC, PROACTIVE, PIPELINED, BOTH = "one robot", "one robot, proactive", "two robots", "two robots, proactive"
PARTS = {BASIC: (COHORTS, 1), PROACTIVE: (SPECEDGE, 1), PIPELINED: (COHORTS, 2), BOTH: (SPECEDGE, 2)}
"""Fig. 8: what robots do, and in how many cohorts. The paper's third step is the last one here."""
RTTS_S = (0.015, 0.025, 0.040, 0.050, 0.065)
ORINS = ("orin_nano_tensorrt", "orin_nano_llama_cpp", "go2_a100")
DEVICES = {"RTX 4090": T_P} | {name: load_profile(name).draft_s for name in ORINS}
"""Fig. 12: T_p by edge device, an Orin's by its profile: a token of a 2B model. A level of a tree is taken to cost no
more."""
SOUGHT = 100
"""Added to the seed where a depth is sought."""
Run = tuple[Setting, int]
"""A setting and its robots."""


def cost_of(pair: Pair) -> PassCost:
    """Return a pass's cost: T_q for one row with a full tree, and more by `GROWTH`."""
    return replace(GROWTH, constant_s=pair.verify_s - GROWTH.seconds(Load.row(1 + TREE, CONTEXT)))


def pass_s(pair: Pair, batch: int = 1) -> float:
    """Return the seconds of a pass of so many trees."""
    return cost_of(pair).seconds(Load.total([Load.row(1 + TREE, CONTEXT)] * batch))


def depth_of(verify_s: float, rtt_s: float, draft_s: float = T_P) -> int:
    """Return how deep a robot drafts while the verifier works for others: (T_q - RTT) / T_p, queue excluded."""
    return max(1, round((verify_s - rtt_s) / draft_s))


def brought_to(pair: Pair, model: Candidates) -> Candidates:
    """Return a model of candidates with which the pair's server commits what it does a verification in the paper."""
    return model.fitted(pair.tokens, TREE, pair.depth)


def best_depth(pair: Pair, model: Candidates, batch: int) -> int:
    """Return the depth of the server's own trees that commit most a second: all are compared."""
    return max(DEPTHS, key=lambda depth: tokens_of(model, TREE, depth) / (pass_s(pair, batch) + depth * T_P))


def ceiling(pair: Pair, model: Candidates) -> float:
    """Return tokens/s if the verifier were never idle and every draft as deep as it is of use: no edge passes it."""
    return tokens_of(model, TREE, DEEPEST) / pass_s(pair)


def layer_split_s(rtt_s: float) -> float:
    """Return the seconds of a token where a quarter of the 32B's layers runs on the edge: Fig. 11 prints 99.63 ms at a
    round trip of 15 ms and 134.90 at 50, one round trip a token."""
    return 0.09963 - 0.015 + rtt_s


def server_run(pair: Pair, model: Candidates, batch: int, depth: int) -> Run:
    """Return `server_sd` with trees of a depth."""
    scheduling = Scheduling("fcfs", max_batch=batch, hint_tokens=0)
    system = System(SERVER, scheduling, server_draft=TREE, server_depth=depth)
    times = Times("SpecEdge", cost_of(pair), T_P, RTT / 2.0, PassCost(0.0, 0.0, 0.0, T_P))
    return Setting(system, times, model.workload(ANSWER, PROMPT)), batch


def edge_run(
    pair: Pair,
    model: Candidates,
    batch: int,
    name: str,
    *,
    cohorts: int = 2,
    rtt_s: float = RTT,
    draft_s: float = T_P,
    depth: int | None = None,
) -> Run:
    """Return robots in two cohorts, one of `EDGES`: they draft while the verifier works for the others.

    cohorts: 1 where it works for nobody else.
    depth: levels of a draft; by the paper's rule where it is None.
    """
    exits = (EXIT,) if name == OURS[1] else ()
    more = 1.0 + EXIT_COST * len(exits)
    levels = depth or min(TREE, depth_of(more * pass_s(pair, batch), rtt_s, draft_s))
    ahead = name in (SPECEDGE, *OURS, ORACLE)
    drafting = Drafting(levels, ahead=ahead, tree=TREE, heads=1 if name == SPECEDGE else 0, oracle=name == ORACLE)
    scheduling = Scheduling("pipeline", max_batch=batch, collect_s=1.0, hint_tokens=0)
    system = System(name, scheduling, drafting=drafting, exits=exits)
    times = Times("SpecEdge", cost_of(pair).scaled(more), draft_s, rtt_s / 2.0)
    return Setting(system, times, model.workload(ANSWER, PROMPT)), cohorts * batch


def arms(pair: Pair, model: Candidates, batch: int) -> dict[str, Run]:
    """Return what is compared at a batch, the server's own drafts first."""
    depth = best_depth(pair, model, batch)
    server = {f"{SERVER} {depth}": server_run(pair, model, batch, depth)}
    return server | {name: edge_run(pair, model, batch, name) for name in EDGES}


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --parts; all else is the paper's."""
    line.add_argument("--parts", action="store_true", help="specedge: its Figs. 8, 11 and 12 alone")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of the setting; those of batch 1 with several seeds."""
    quick = options.quick
    pairs = dict(list(PAIRS.items())[:1]) if quick else PAIRS
    names = ["stretches"] if quick else [*MODELS, AS_MEASURED]
    seeds = range(options.seed, options.seed + (1 if quick else 3))
    if options.parts:
        found = {
            pair: {name: parts(declared, name, quick, seeds, options.jobs) for name in names if name in MODELS}
            for pair, declared in pairs.items()
        }
        return {"name": "specedge_parts", "window_s": [WARM_S, WINDOW_S], "parts": found}
    batches = BATCHES[:1] if quick else BATCHES
    figures: dict[str, dict[str, Any]] = {pair: {} for pair in pairs}
    cells, keys = [], []
    for pair, name in itertools.product(pairs, names):
        declared = pairs[pair]
        model = MODELS[EMBEDDED] if name == AS_MEASURED else brought_to(declared, MODELS[name])
        figures[pair][name] = {"batches": {}, "ceiling": ceiling(declared, model)}
        for batch in batches:
            for arm, (setting, robots) in arms(declared, model, batch).items():
                for seed in seeds if batch == 1 else seeds[:1]:
                    keys.append((pair, name, batch, arm))
                    cells.append((setting, robots, seed, window_of(robots, quick)))
    seen: dict[tuple[str, str, int], dict[str, list[dict[str, float]]]] = {}
    results = progress(run_parallel(cell, cells, options.jobs), total=len(cells), desc="SpecEdge", unit="run")
    for (pair, name, batch, arm), found in zip(keys, results, strict=True):
        seen.setdefault((pair, name, batch), {}).setdefault(arm, []).append(found)
    for (pair, name, batch), runs in seen.items():
        figures[pair][name]["batches"][batch] = compared(pairs[pair], batch, runs)
    return {
        "times": {"T_p": T_P, "RTT": RTT, "growth": asdict(GROWTH), "context": CONTEXT, "exit_cost": EXIT_COST},
        "exit": asdict(EXIT),
        "sources": {name: MODELS[name].source for name in names if name in MODELS},
        "window_s": [WARM_S, WINDOW_S],
        "rows": figures,
    }


def parts(
    pair: Pair, name: str, quick: bool, seeds: Sequence[int], jobs: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Return Fig. 8 of a pair with one of `MODELS`, and with candidates in stretches Fig. 11, as the paper of the 32B
    alone, and Fig. 12. Every arm has the depth at which a robot's token takes least with another seed.

    By place, then by arm: depth, tokens/s, seconds of a robot's token, tokens a verification, and how many times as
    fast a robot is as the target alone, with a token a pass.
    """
    model, is_whole = brought_to(pair, MODELS[name]), name == "stretches" and not quick
    depths = DEPTHS[::3] if quick else DEPTHS[:8]
    alone_s = cost_of(pair).seconds(Load.row(1, CONTEXT))
    runs: dict[tuple[str, str], dict[int, Run]] = {
        ("parts", name): {depth: server_run(pair, model, 1, depth)}
        for name, depth in ((SERVER, best_depth(pair, model, 1)), (f"{SERVER}, printed depth", pair.depth))
    }
    places = {"parts": (RTT, T_P, tuple(PARTS))}
    if pair is PAIRS["Qwen3 32B/1.7B"] and is_whole:
        places |= {f"RTT {1e3 * rtt_s:g} ms": (rtt_s, T_P, (PROACTIVE, BOTH)) for rtt_s in RTTS_S}
    if is_whole:
        places |= {name: (RTT, draft_s, (PROACTIVE, BOTH)) for name, draft_s in DEVICES.items() if draft_s != T_P}
    for place, (rtt_s, draft_s, arms) in places.items():
        for arm in arms:
            system, cohorts = PARTS[arm]
            runs[place, arm] = {
                depth: edge_run(pair, model, 1, system, cohorts=cohorts, rtt_s=rtt_s, draft_s=draft_s, depth=depth)
                for depth in depths
            }
    tried = [(key, depth) for key, each in runs.items() for depth in each if len(each) > 1]
    cells = [(*runs[key][depth], seeds[0] + SOUGHT, window_of(runs[key][depth][1], True)) for key, depth in tried]
    found = progress(run_parallel(cell, cells, jobs), total=len(cells), desc="SpecEdge, depths", unit="run")
    seconds = dict(zip(tried, (each["itl_s"] for each in found), strict=True))
    best = {key: min(each, key=lambda depth: seconds.get((key, depth), 0.0)) for key, each in runs.items()}
    cells = [(*runs[key][depth], seed, window_of(runs[key][depth][1], quick))
             for key, depth in best.items() for seed in seeds]  # fmt: skip
    results, shown = iter(run_parallel(cell, cells, jobs)), dict[str, dict[str, dict[str, float]]]()
    for (place, arm), depth in best.items():
        each = [next(results) for _ in seeds]
        row = {figure: float(np.mean([one[figure] for one in each])) for figure in each[0]}
        shown.setdefault(place, {})[arm] = {"depth": depth, **row, "times_alone": alone_s / row["itl_s"]}
    for place, (rtt_s, *_) in places.items():
        if place.startswith("RTT"):
            split_s = layer_split_s(rtt_s)
            shown[place]["layer split, printed"] = {"itl_s": split_s, "times_alone": alone_s / split_s}
    base = shown["parts"][SERVER]["itl_s"]
    for rows in shown.values():
        for row in rows.values():
            row["itl_times"] = row["itl_s"] / base
    return shown


def window_of(robots: int, quick: bool) -> Window:
    """Return when is measured: of many robots less time is enough."""
    return Window(WARM_S, WARM_S + max(LEAST_S, (20.0 if quick else WINDOW_S) / robots))


def cell(setting: Setting, robots: int, seed: int, window: Window) -> dict[str, float]:
    """Return tokens/s, seconds a token of a robot, tokens a verification, and the share of time the verifier works."""
    setting = replace(setting, workload=replace(setting.workload, seed=seed))
    figures = run(setting, robots, seed, window, judged=False)
    return {
        "tokens_per_s": figures.goodput, "itl_s": robots / figures.goodput, "tau": figures.tokens_per_pass,
        "tau_spread": figures.tokens_spread, "busy": figures.busy,
    }  # fmt: skip


def compared(pair: Pair, batch: int, seen: Mapping[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of all systems, spreads over seeds, and their ratios to `server_sd` at its best depth."""
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in seen.items():
        edges = 2 * batch if name in EDGES else 0
        spreads = {key: spread([each[key] for each in runs]) for key in runs[0]}
        dollars = (pair.server_price + EDGE_PRICE * edges) / 3600.0
        rows[name] = {key: each["median"] for key, each in spreads.items()} | {
            "tokens_per_s": spreads["tokens_per_s"],
            "robots": edges or batch,
            "kilotokens_per_dollar": spreads["tokens_per_s"]["median"] / dollars / 1e3,
        }
    base = next(iter(rows.values()))
    for row in rows.values():
        row["times"] = row["tokens_per_s"]["median"] / base["tokens_per_s"]["median"]
        row["itl_times"] = row["itl_s"] / base["itl_s"]
        row["dollar_times"] = row["kilotokens_per_dollar"] / base["kilotokens_per_dollar"]
    return rows


COLUMNS = (
    Column("robots", "robots", ".0f"), Column("tokens/s", "tokens_per_s", ".1f"), Column("times", "times"),
    Column("ms/token", "itl_s", ".1f", 1e3), Column("times", "itl_times"), Column("tokens/verification", "tau"),
    Column("+-", "tau_spread"), Column("busy %", "busy", ".0f", 100.0),
    Column("1000 tokens/$", "kilotokens_per_dollar", ".1f"), Column("times", "dollar_times"),
)  # fmt: skip


PART_COLUMNS = (
    Column("depth", "depth", ".0f"), Column("tokens/s", "tokens_per_s", ".1f"), Column("ms/token", "itl_s", ".1f", 1e3),
    Column("times server_sd", "itl_times"), Column("tokens/verification", "tau"),
    Column("busy %", "busy", ".0f", 100.0), Column("times as fast as the target alone", "times_alone"),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    if "parts" in data:
        return report_of_parts(data["parts"])
    lines = [
        f"SpecEdge's setting; measured from {data['window_s'][0]:g} s on, {data['window_s'][1]:g} s of robots' time; "
        "batch 1 with several seeds, of which the spread is shown, larger batches with one",
        "assumed, not in the paper: T_q grows with the batch as WISP's Table 12 has it; the server's draft forward "
        "takes T_p, too; how well the draft model foresees the target, in several models:",
        *(f"  {name}: {source}" for name, source in data["sources"].items()),
        f"all but '{AS_MEASURED}' are brought to the printed tokens a verification of the paper's server: the chance "
        "that none of the first k candidates is right is raised to a power",
        "cohorts: SpecEdge without pre-drafts; specedge: one path goes on; ours: several do, sharing a forward by what "
        f"they are expected to bring; exits: after {EXIT.after:.0%} of a pass the target names the verdict, and "
        f"{EXIT.right:.0%} of these names are right, as with the embedded pair; {ORACLE}: drafts on where the verdict "
        "will end, which no robot knows",
        "times: over server_sd at its best depth",
    ]
    for pair, by_model in data["rows"].items():
        for name, figures in by_model.items():
            for batch, rows in figures["batches"].items():
                lines += [f"\n{pair}, {name}, batch {batch}", figures_table("system", rows, COLUMNS)]
            base = next(iter(figures["batches"][1].values()))["tokens_per_s"]["median"]
            lines.append(f"no edge is faster at batch 1 than {figures['ceiling'] / base:.2f} times server_sd")
    return "\n".join(lines)


def report_of_parts(pairs: Mapping[str, Any]) -> str:
    """Return the tables of Figs. 8, 11 and 12."""
    return "\n".join(
        f"\n{pair}, {name}, {place}, batch 1, every arm at its best depth\n{figures_table('arm', rows, PART_COLUMNS)}"
        for pair, by_model in pairs.items()
        for name, by_place in by_model.items()
        for place, rows in by_place.items()
    )


def plot(data: Mapping[str, Any]) -> Figure:
    """Return tokens/s against latency for every batch by pair, with candidates as printed and as measured.

    Below, what each system reaches over `server_sd` at batch 1 by model, under the ceiling.
    """
    figure = new_figure(10.0)
    pairs = list(data["rows"])
    every = figure.subplots(2, len(pairs), squeeze=False, height_ratios=(3, 2))
    for place, pair in enumerate(pairs):
        above, below = every[:, place]
        by_model = data["rows"][pair]
        for model, style in (("stretches", "-"), (AS_MEASURED, "--")):
            batches = by_model[model]["batches"].values() if model in by_model else ()
            for look, name in enumerate((SERVER, *PLOTTED)):
                rows = [next(iter(each.values())) if name == SERVER else each[name] for each in batches]
                if rows:
                    slow = [1e3 * row["itl_s"] for row in rows]
                    fast = [row["tokens_per_s"]["median"] for row in rows]
                    label = name if style == "-" else None
                    above.plot(slow, fast, MARKERS[look] + style, color=COLOURS[look], label=label)
        above.set(
            xlabel="ms a token", ylabel="tokens/s of the server", yscale="log",
            title=f"{pair}, batch 1 to {list(next(iter(by_model.values()))['batches'])[-1]}",
        )  # fmt: skip
        plain(above, "both")
        firsts = [next(iter(each["batches"].values())) for each in by_model.values()]
        at = np.arange(len(by_model))
        for look, name in enumerate(PLOTTED, start=1):
            values = [rows[name]["times"] for rows in firsts]
            below.bar(at + 0.2 * (look - 2.5), values, 0.18, label=name, color=COLOURS[look], hatch=HATCHES[look],
                      edgecolor="white")  # fmt: skip
        bases = [next(iter(rows.values()))["tokens_per_s"]["median"] for rows in firsts]
        most = [each["ceiling"] / base for each, base in zip(by_model.values(), bases, strict=True)]
        below.plot(at, most, "_", color=PAPER, markersize=28, label="ceiling")
        below.set(ylabel="times server_sd, batch 1")
        below.set_xticks(at, [name.replace(", ", ",\n").replace(" ", "\n") for name in by_model], fontsize=SMALL)
        below.margins(y=0.45)
        plain(below)
    lines, names = every[0, 0].get_legend_handles_labels()
    title = "above: candidates brought to the paper (stretches), dashed: embedded pair as measured"
    figure.legend(lines, names, loc="outside upper center", ncols=3, fontsize=SMALL, title=title, title_fontsize=SMALL)
    every[1, 0].legend(fontsize=SMALL, ncols=2)
    return figure
