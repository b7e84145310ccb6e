"""SpecEdge's setting: a tree from each of 2 x batch robots in two cohorts, against a draft model on the server.

T_p 11 ms, T_q 60 ms (14B) or 94.2 ms (32B), a round trip of 14.07 ms, answers of 256 tokens, trees of 32. The server's
own drafts have the best depth of 1 to 12; robots draft (T_q - RTT) / T_p levels (Sec. 4.3). The prices are the paper's.

What a verification commits depends on how well the draft model foresees the target, which no paper prints for these
pairs: see `candidates`. Every model of it but one is brought to the tokens a verification that the paper's server
commits, and all are reported.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cloud_verifier.config import Scheduling
from speculation.pass_cost import Load, PassCost
from speculation.settings import path_flag
from speculation.wire import MAX_DRAFT_TOKENS
from vlm_nav_evaluation.fleet.candidates import MODELS, Candidates, measured, tokens_of
from vlm_nav_evaluation.fleet.cells import run_cells
from vlm_nav_evaluation.fleet.figures import Window, run
from vlm_nav_evaluation.fleet.systems import Drafting, Exit, Setting, System, Times
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings
from vlm_nav_evaluation.virtual_time.layer_split import LayerSplit

TREE, DEPTHS, BATCHES = 32, tuple(range(1, 13)), (1, 2, 4, 8)
SIZES = (48, MAX_DRAFT_TOKENS)
"""Nodes of larger trees; a message carries no more."""
PER_ROW = (3, 4)
"""Robots for each row of a batch, where there are more than the paper's 2."""
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
EXITS = (Exit(2, 0.40, 0.390), Exit(5, 0.75, 0.523), Exit(6, 0.86, 0.820))
"""Of the embedded pair, short lists, 1,554 verifications (models/exits/measured.json): lead over the verdict, and how
often all of it is right."""
EXIT_COST = 0.018
"""What an exit adds to a pass, measured there."""
MORE_EXITS = (EXITS[2:], EXITS[::2], EXITS)
"""What is compared with the first one alone, which "ours, exits" has."""


@dataclass(frozen=True)
class Printed:
    """What the paper prints at batch 1, means over the six tasks of Table 1: mean and standard deviation of tokens a
    verification, and ratios to server-only."""

    server: tuple[float, float]
    specedge: tuple[float, float]
    speed: float
    dollars: float


@dataclass(frozen=True)
class Pair:
    """A target and a draft model."""

    verify_s: float
    """T_q of one tree."""
    depth: int
    """Draft forwards of the paper's server: (tokens a verification / tokens a second - T_q) / T_p by Table 1."""
    server_price: float
    """Dollars an hour."""
    printed: Printed


PAIRS = {
    "Qwen3 32B/1.7B": Pair(0.0942, 7, 5.05, Printed((4.10, 1.97), (4.67, 2.69), 2.29, 2.01)),
    "Qwen3 14B/1.7B": Pair(0.060, 6, 4.05, Printed((3.81, 1.53), (3.98, 1.54), 2.17, 1.86)),
}
EMBEDDED = "embedded"
AS_MEASURED = f"{EMBEDDED}, as measured"
"""The model that is brought to no printed figure."""
GOALS = {"tokens/s": 2.5, "inter-token latency": 1.0 - 0.1124, "tokens a dollar": 2.2}
"""At batch 1, of the better one of `OURS` against `server_sd` at its best depth."""
SERVER, SPECEDGE, OURS = "server_sd", "specedge", ("ours", "ours, exits")
PRINTED = f"{SERVER}, printed depth"
FASTER, SLOWER = "faster than any batch", "slower than all"
RTTS = {0.015: 7, 0.040: 5, 0.050: 4}
"""Round trip -> depth (Fig. 10)."""
Run = tuple[Setting, int]
"""A setting and its robots."""


def cost_of(pair: Pair) -> PassCost:
    """Return a pass's cost: T_q for one row with a full tree, and more by `GROWTH`."""
    return replace(GROWTH, constant_s=pair.verify_s - GROWTH.seconds(Load.row(1 + TREE, CONTEXT)))


def pass_s(pair: Pair, batch: int = 1, size: int = TREE) -> float:
    """Return the seconds of a pass of so many trees."""
    return cost_of(pair).seconds(Load.total([Load.row(1 + size, CONTEXT)] * batch))


def depth_of(verify_s: float, rtt_s: float, draft_s: float = T_P) -> int:
    """Return how deep a robot drafts while the verifier works for others: (T_q - RTT) / T_p, queue excluded."""
    return max(1, round((verify_s - rtt_s) / draft_s))


def brought_to(pair: Pair, model: Candidates) -> Candidates:
    """Return a model of candidates with which the pair's server commits what it does a verification in the paper."""
    return model.fitted(pair.printed.server[0], TREE, pair.depth)


def best_server(pair: Pair, model: Candidates, batch: int, sizes: Sequence[int] = (TREE,)) -> tuple[int, int]:
    """Return size and depth of the server's own trees that commit most a second: all depths are compared."""

    def rate(size: int, depth: int) -> float:
        return tokens_of(model, size, depth) / (pass_s(pair, batch, size) + depth * T_P)

    return max(((size, depth) for size in sizes for depth in DEPTHS), key=lambda each: rate(*each))


def ceiling(pair: Pair, model: Candidates, batch: int = 1, size: int = TREE) -> float:
    """Return tokens/s if the verifier were never idle and every draft as deep as it is of use: no edge passes it."""
    return batch * tokens_of(model, size, DEEPEST) / pass_s(pair, batch, size)


def server_run(pair: Pair, model: Candidates, batch: int, size: int, depth: int, name: str = SERVER) -> Run:
    """Return `server_sd` with trees of a size and depth."""
    scheduling = Scheduling("fcfs", max_batch=batch, hint_tokens=0)
    system = System(name, scheduling, server_draft=size, server_depth=depth)
    times = Times("SpecEdge", cost_of(pair), T_P, RTT / 2.0, PassCost(0.0, 0.0, 0.0, T_P))
    return Setting(system, times, model.workload(ANSWER, PROMPT)), batch


def edge_run(
    pair: Pair,
    model: Candidates,
    batch: int,
    name: str,
    *,
    size: int = TREE,
    per_row: int = 2,
    rtt_s: float = RTT,
    depth: int | None = None,
    exits: tuple[Exit, ...] = (),
) -> Run:
    """Return robots in cohorts: `SPECEDGE`, one of `OURS`, or any other name for no pre-drafts.

    depth: of the drafts, None for the time in which the verifier works for others.
    """
    exits = exits or (EXITS[:1] if name == OURS[1] else ())
    more = 1.0 + EXIT_COST * len(exits)
    cost = cost_of(pair).scaled(more)
    full = (per_row - 1) * more * pass_s(pair, batch, size)
    levels = depth or min(size, depth_of(full, rtt_s))
    heads = {SPECEDGE: 1}.get(name, 0)
    drafting = Drafting(levels, ahead=name in (SPECEDGE, *OURS), tree=size, heads=heads)
    scheduling = Scheduling("pipeline", max_batch=batch, collect_s=1.0, hint_tokens=0)
    system = System(name, scheduling, drafting=drafting, exits=exits)
    times = Times("SpecEdge", cost, T_P, rtt_s / 2.0)
    return Setting(system, times, model.workload(ANSWER, PROMPT)), per_row * batch


def arms(pair: Pair, model: Candidates, batch: int) -> dict[str, Run]:
    """Return what is compared at a batch."""
    size, depth = best_server(pair, model, batch)
    edges = ("cohorts, no pre-drafts", SPECEDGE, *OURS)
    return {
        f"{SERVER} {depth}": server_run(pair, model, batch, size, depth),
        PRINTED: server_run(pair, model, batch, TREE, pair.depth, PRINTED),
    } | {name: edge_run(pair, model, batch, name) for name in edges}


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --recording."""
    line.add_argument(
        "--recording", type=path_flag,
        help="specedge: a recording (`python -m benchmarks.virtual_time record --top 6`) whose candidates replace "
        "those of the embedded pair",
    )  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of the setting; batch 1, of which the goals are, with several seeds.

    Raises ValueError for a recording that cannot be used.
    """
    quick = options.quick
    models = dict(MODELS)
    if options.recording is not None:
        models[EMBEDDED] = measured(Recording.load(options.recording), f"measured: {options.recording.name}")
    pairs = dict(list(PAIRS.items())[:1]) if quick else PAIRS
    names = ["stretches"] if quick else [*models, AS_MEASURED]
    seeds = range(options.seed, options.seed + (1 if quick else 3))
    tables: dict[tuple[str, str, str], dict[str, Run]] = {}
    figures: dict[str, dict[str, Any]] = {pair: {} for pair in pairs}
    for pair, name in itertools.product(pairs, names):
        declared, model = pairs[pair], models[EMBEDDED]
        if name != AS_MEASURED:
            model = brought_to(declared, models[name])
        tables |= {(pair, name, title): runs for title, runs in tables_of(declared, model, quick).items()}
        figures[pair][name] = {
            "kinds": model.kinds, "shares": model.shares, "stay": model.stay, "batches": {},
            "ceiling": {size: ceiling(declared, model, 1, size) for size in (TREE, *SIZES)[: 1 if quick else None]},
        }  # fmt: skip
    tables["", "", "depths"] = {} if quick else depth_runs(brought_to(pairs[next(iter(PAIRS))], models["stretches"]))
    cells = [
        (key, name, *each, seed, window_of(each[1], quick))
        for key, table in tables.items()
        for name, each in table.items()
        for seed in (seeds if key[2] == "1" else seeds[:1])
    ]
    found = run_cells("SpecEdge's setting", cell, [each[2:] for each in cells], options.jobs)
    seen: dict[tuple[str, str, str], dict[str, list[dict[str, float]]]] = {key: {} for key in tables}
    for (key, name, *_), result in zip(cells, found, strict=True):
        seen[key].setdefault(name, []).append(result)
    for (pair, name, title), runs in seen.items():
        if title.isdigit():
            figures[pair][name]["batches"][int(title)] = compared(pairs[pair], int(title), runs)
        elif pair:
            robots = {each: count for each, (_, count) in tables[pair, name, title].items()}
            figures[pair][name][title] = {each: run[0] | {"robots": robots[each]} for each, run in runs.items()}
    for figure in (each for by_model in figures.values() for each in by_model.values()):
        figure["at_equal_latency"] = at_equal_latency(figure["batches"], figure.get("per_row", {}))
    return {
        "times": {"T_p": T_P, "RTT": RTT, "growth": asdict(GROWTH), "context": CONTEXT, "exit_cost": EXIT_COST},
        "exits": [asdict(each) for each in EXITS],
        "sources": {name: models[name].source for name in names if name in models},
        "window_s": [WARM_S, WINDOW_S],
        "rows": figures,
        "depths": depths({name: each["tokens_per_s"] for name, (each,) in seen["", "", "depths"].items()}),
        "layer_split": {pair: layer_split(declared) for pair, declared in pairs.items()},
    }


def tables_of(pair: Pair, model: Candidates, quick: bool) -> dict[str, dict[str, Run]]:
    """Return what is run, by table: those of batches have their number for a title."""
    if quick:
        return {str(batch): arms(pair, model, batch) for batch in BATCHES[:1]}
    more = {"sizes": wider_trees(pair, model), "per_row": more_robots(pair, model), "exits": exit_sets(pair, model)}
    return {str(batch): arms(pair, model, batch) for batch in BATCHES} | more


def wider_trees(pair: Pair, model: Candidates) -> dict[str, Run]:
    """Return trees of every size at batch 1: the server's own at the best depth of each, and ours."""
    table: dict[str, Run] = {}
    for size in SIZES:
        _, depth = best_server(pair, model, 1, (size,))
        table[f"{SERVER}, {size} nodes, depth {depth}"] = server_run(pair, model, 1, size, depth)
        table |= {f"{name}, {size} nodes": edge_run(pair, model, 1, name, size=size) for name in OURS}
    return table


def more_robots(pair: Pair, model: Candidates) -> dict[str, Run]:
    """Return more than two robots at batch 1."""
    return {
        f"{name}, {per_row} a row": edge_run(pair, model, 1, name, per_row=per_row)
        for name in OURS for per_row in PER_ROW
    }  # fmt: skip


def window_of(robots: int, quick: bool) -> Window:
    """Return when is measured: of many robots less time is enough."""
    return Window(WARM_S, WARM_S + max(LEAST_S, (20.0 if quick else WINDOW_S) / robots))


def exit_sets(pair: Pair, model: Candidates) -> dict[str, Run]:
    """Return ours with other exits at batch 1."""
    return {
        "after layers " + ", ".join(str(each.layer) for each in exits): edge_run(pair, model, 1, OURS[1], exits=exits)
        for exits in MORE_EXITS
    }


def depth_runs(model: Candidates) -> dict[str, Run]:
    """Return SpecEdge at every round trip of Fig. 10 and depths around the one of Sec. 4.3 (32B)."""
    pair = next(iter(PAIRS.values()))
    return {
        f"{1e3 * rtt_s:g} ms, {depth}": edge_run(pair, model, 1, SPECEDGE, rtt_s=rtt_s, depth=depth)
        for rtt_s in RTTS for depth in range(3, 10)
    }  # fmt: skip


def depths(tried: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return, for each round trip of Fig. 10, the depth of Sec. 4.3, the paper's, and the best of those tried."""
    rows = {}
    for rtt_s, printed in RTTS.items():
        name = f"{1e3 * rtt_s:g} ms"
        at = {key.split(", ")[1]: speed for key, speed in tried.items() if key.startswith(f"{name}, ")}
        best = max(at, key=lambda depth: at[depth]) if at else None
        rows[name] = {
            "depth": depth_of(next(iter(PAIRS.values())).verify_s, rtt_s), "paper": printed, "best": best, "at": at,
        }  # fmt: skip
    return rows


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
        edges = 0 if name.startswith(SERVER) else 2 * batch
        spreads = {key: _spread([each[key] for each in runs]) for key in runs[0]}
        dollars = (pair.server_price + EDGE_PRICE * edges) / 3600.0
        speed = spreads["tokens_per_s"]["median"]
        rows[name] = {key: spread["median"] for key, spread in spreads.items()} | {
            "tokens_per_s": spreads["tokens_per_s"],
            "robots": edges or batch,
            "kilotokens_per_dollar": speed / dollars / 1e3,
        }
    base = rows[best_of(rows)]
    for row in rows.values():
        row["times"] = row["tokens_per_s"]["median"] / base["tokens_per_s"]["median"]
        row["itl_times"] = row["itl_s"] / base["itl_s"]
        row["dollar_times"] = row["kilotokens_per_dollar"] / base["kilotokens_per_dollar"]
    return rows


def best_of(rows: Mapping[str, Any]) -> str:
    """Return the name of `server_sd` at its best depth."""
    return next(name for name in rows if name.startswith(SERVER) and name != PRINTED)


def at_equal_latency(
    batches: Mapping[int, Mapping[str, Mapping[str, Any]]], per_row: Mapping[str, Mapping[str, float]]
) -> dict[str, float | str]:
    """Return tokens/s over those of `server_sd` in the batch that gives its robots the same latency (Fig. 6).

    Between two batches of `server_sd` it is linear; in words where no batch that was run is as fast, or as slow.
    """
    curve = sorted((rows[best_of(rows)] for rows in batches.values()), key=lambda each: float(each["itl_s"]))
    slow, speeds = [each["itl_s"] for each in curve], [each["tokens_per_s"]["median"] for each in curve]
    points = {
        f"{name}, batch {batch}": (rows[name]["itl_s"], rows[name]["tokens_per_s"]["median"])
        for batch, rows in batches.items() for name in (SPECEDGE, *OURS)
    } | {name: (each["itl_s"], each["tokens_per_s"]) for name, each in per_row.items()}  # fmt: skip
    found: dict[str, float | str] = {}
    for name, (itl_s, speed) in points.items():
        found[name] = float(speed / np.interp(itl_s, slow, speeds))
        if not slow[0] <= itl_s <= slow[-1]:
            found[name] = FASTER if itl_s < slow[0] else SLOWER
    return found


def layer_split(pair: Pair) -> dict[str, float]:
    """Return seconds a token where a quarter of the layers is on the edge, autoregressive (Sec. 5.3)."""
    decode_s = cost_of(pair).seconds(Load.row(1, CONTEXT))
    recording = Synthetic(tokens=256, image_bytes=0).draw(1)
    (result,) = LayerSplit(hidden_bytes=2 * 5120).decode(recording, Timings(verify_s=decode_s, one_way_s=RTT / 2.0))
    return {"itl_s": result.stats.total_s / len(result.tokens)}


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}


COLUMNS = (
    Column("robots", "robots", ".0f"), Column("tokens/s", "tokens_per_s", ".1f"), Column("times", "times"),
    Column("ms/token", "itl_s", ".1f", 1e3), Column("times", "itl_times"), Column("tokens/verification", "tau"),
    Column("+-", "tau_spread"), Column("busy %", "busy", ".0f", 100.0),
    Column("1000 tokens/$", "kilotokens_per_dollar", ".1f"), Column("times", "dollar_times"),
)  # fmt: skip
PLAIN_COLUMNS = (
    Column("robots", "robots", ".0f"), Column("tokens/s", "tokens_per_s", ".1f"),
    Column("ms/token", "itl_s", ".1f", 1e3), Column("tokens/verification", "tau"),
    Column("busy %", "busy", ".0f", 100.0),
)  # fmt: skip
DEPTH_COLUMNS = (Column("depth", "depth", ".0f"), Column("paper", "paper", ".0f"), Column("best here", "best"))


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    parts = [
        f"SpecEdge's setting; measured from {data['window_s'][0]:g} s on, {data['window_s'][1]:g} s of robots' time; "
        "batch 1 with several seeds, of which the spread is shown; all else (larger batches, sizes, per_row, exits, "
        "depths) with one seed",
        "assumed, not in the paper: T_q grows with the batch as WISP's Table 12 has it; the server's draft forward "
        "takes T_p, too; how well the draft model foresees the target, in several models:",
        *(f"  {name}: {source}" for name, source in data["sources"].items()),
        f"all but '{AS_MEASURED}' are brought to the printed tokens a verification of the paper's server: the chance "
        "that none of the first k candidates is right is raised to a power",
        "cohorts: SpecEdge without pre-drafts; specedge: one path goes on; ours: several do, sharing a forward by what "
        f"they are expected to bring; exits: after {EXITS[0].after:.0%} of a pass the target names the verdict, and "
        f"{EXITS[0].right:.0%} of these names are right, as with the embedded pair",
    ]
    for pair, by_model in data["rows"].items():
        printed = PAIRS[pair].printed
        parts.append(
            f"\n{pair}; paper, batch 1: {printed.speed:.2f}x tokens/s, {printed.dollars:.2f}x tokens a dollar; tokens "
            f"a verification {printed.server[0]} +- {printed.server[1]} (server-only), {printed.specedge[0]} +- "
            f"{printed.specedge[1]} (SpecEdge); 11.24 % less latency on average\n"
            f"layer split: {1e3 * data['layer_split'][pair]['itl_s']:.1f} ms a token"
        )
        for name, figures in by_model.items():
            for batch, rows in figures["batches"].items():
                parts += [f"\n{pair}, {name}, batch {batch}", figures_table("system", rows, COLUMNS)]
            equal = {each: {"times": value} for each, value in figures["at_equal_latency"].items()}
            parts += ["", figures_table("at equal latency, over server_sd", equal, (Column("tokens/s", "times"),))]
            for title in ("sizes", "per_row", "exits"):
                if title in figures:
                    parts += [f"\n{pair}, {name}", figures_table(f"{title}, one seed", figures[title], PLAIN_COLUMNS)]
    parts += ["\ndepth of SpecEdge's drafts by round trip, 32B, stretches",
              figures_table("RTT", data["depths"], DEPTH_COLUMNS)]  # fmt: skip
    return "\n".join([*parts, "", summary(data), "", *verdicts(data)])


SUMMARY_COLUMNS = (
    Column("server_sd tokens/s", "base", ".1f"), Column("specedge", "specedge", ".2fx"), Column("ours", "ours", ".2fx"),
    Column("with exits", "exits", ".2fx"), Column("ceiling", "ceiling", ".2fx"),
    Column("latency", "latency", ".2fx"), Column("tokens a dollar", "dollars", ".2fx"),
    Column("over the printed depth", "printed", ".2fx"),
)  # fmt: skip


def summary(data: Mapping[str, Any]) -> str:
    """Return batch 1 by model: everything over `server_sd` at its best depth, and ours over the depth of the paper."""
    table: dict[str, dict[str, Any]] = {}
    for pair, by_model in data["rows"].items():
        for name, figures in by_model.items():
            rows = next(iter(figures["batches"].values()))
            base, ours = rows[best_of(rows)]["tokens_per_s"]["median"], rows[better(rows)]
            table[f"{pair}, {name}"] = {
                "base": base, "specedge": rows[SPECEDGE]["times"], "ours": rows[OURS[0]]["times"],
                "exits": rows[OURS[1]]["times"], "ceiling": figures["ceiling"][TREE] / base,
                "latency": ours["itl_times"], "dollars": ours["dollar_times"],
                "printed": ours["times"] / rows[PRINTED]["times"],
            }  # fmt: skip
    return figures_table("batch 1, over server_sd at its best depth", table, SUMMARY_COLUMNS)


def better(rows: Mapping[str, Any]) -> str:
    """Return which of ours is faster."""
    return max(OURS, key=lambda name: float(rows[name]["times"]))


def verdicts(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield for every goal whether ours meets it at batch 1, by pair and model, and whether any edge could."""
    for pair, by_model in data["rows"].items():
        for name, figures in by_model.items():
            rows = next(iter(figures["batches"].values()))
            row = rows[better(rows)]
            most = figures["ceiling"][TREE] / rows[best_of(rows)]["tokens_per_s"]["median"]
            money = row["dollar_times"] / row["times"]
            found = {
                "tokens/s": (row["times"], most), "inter-token latency": (row["itl_times"], 2.0 / most),
                "tokens a dollar": (row["dollar_times"], money * most),
            }  # fmt: skip
            for goal, limit in GOALS.items():
                value, bound = found[goal]
                below = goal == "inter-token latency"
                met, open_to_any = (each < limit if below else each >= limit for each in (value, bound))
                word = "met" if met else "NOT met" if open_to_any else "NOT met, out of reach of two cohorts"
                yield f"goal, {pair}, {name}: {goal} {limit:.2f}x server_sd: {value:.2f}x, ceiling {bound:.2f}x, {word}"
