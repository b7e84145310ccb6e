"""SpecEdge's setting: a tree of 32 from each of 2 x batch robots in two cohorts, against a draft model on the server.

T_p 11 ms, T_q 60 ms (14B) or 94.2 ms (32B), a round trip of 14.07 ms, answers of 256 tokens. The server's own drafts
have the best depth of 1 to 12; robots draft (T_q - RTT) / T_p levels (Sec. 4.3). The prices are the paper's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cloud_verifier.config import Scheduling
from evaluation.fleet.cells import run_cells
from evaluation.fleet.figures import Window, run
from evaluation.fleet.systems import Drafting, Setting, System, Times
from evaluation.fleet.workload import Workload
from evaluation.tables import Column, figures_table
from evaluation.virtual_time import Synthetic, Timings
from evaluation.virtual_time.layer_split import LayerSplit
from speculation.pass_cost import Load, PassCost

TREE, DEPTHS, BATCHES = 32, tuple(range(1, 13)), (1, 2, 4, 8)
T_P, RTT = 0.011, 0.01407
EDGE_PRICE = 0.35
"""Dollars an hour of an RTX 4090."""
CONTEXT = 224
"""Mean tokens in the cache: a prompt of 96 and half an answer."""
EASY, HARD, EASY_SHARE = (0.97, 0.015), tuple(0.3 * 0.3**rank for rank in range(6)), 0.7
"""Chances of candidates at easy and at hard answer positions, and the share of easy ones; ours. With them `server_sd`
is fastest, and commits as many tokens a verification, about as the paper's Table 1 and T_q imply for 32B/1.7B."""
GROWTH = PassCost(33.14e-6, 34.5e-9, 4.62e-6, 0.0)
"""What further rows add to a pass: WISP's Table 12, as this paper prints no T_q of a batch."""
HEADS = 8
"""Places behind the tree where our robots go on drafting, in the same forwards."""


@dataclass(frozen=True)
class Pair:
    """A target and a draft model."""

    verify_s: float
    """T_q of one tree."""
    tokens: float
    """Tokens a verification of the server's own drafts: the mean of Table 1 (14B) and of Fig. 9 (32B)."""
    server_price: float
    """Dollars an hour."""
    paper: tuple[float, float, float]
    """SpecEdge over server-only at batch 1: tokens/s and tokens a dollar (means of Table 1), tokens a verification."""


PAIRS = {
    "Qwen3 32B/1.7B": Pair(0.0942, 4.02, 5.05, (2.29, 2.01, 4.67 / 4.10)),
    "Qwen3 14B/1.7B": Pair(0.060, 3.81, 4.05, (2.17, 1.86, 3.98 / 3.81)),
}
GOALS = {"tokens/s": 2.5, "inter-token latency": 1.0 - 0.1124, "tokens a dollar": 2.2}
"""At batch 1, of `ours` against `server_sd` at its best depth."""
SERVER = "server_sd"
RTTS = {0.015: 7, 0.040: 5, 0.050: 4}
"""Round trip -> depth (Fig. 10)."""


def cost_of(pair: Pair) -> PassCost:
    """Return a pass's cost: T_q for one row with a full tree, and more by `GROWTH`."""
    return replace(GROWTH, constant_s=pair.verify_s - GROWTH.seconds(Load.row(1 + TREE, CONTEXT)))


def depth_of(verify_s: float, rtt_s: float, draft_s: float = T_P) -> int:
    """Return how deep a robot drafts while the verifier works for others: (T_q - RTT) / T_p, queue excluded."""
    return max(1, round((verify_s - rtt_s) / draft_s))


def settings(pair: Pair, batch: int, rtt_s: float = RTT, depth: int | None = None) -> dict[str, tuple[Setting, int]]:
    """Return what is compared at a batch, and the robots of each; `server_sd` at every depth.

    depth: of the robots' drafts, None for `depth_of`.
    """
    cost = cost_of(pair)
    workload = Workload((EASY, HARD), (EASY_SHARE, 1.0 - EASY_SHARE), (96, 96), (256, 256))
    times = Times("SpecEdge", cost, T_P, rtt_s / 2.0, PassCost(0.0, 0.0, 0.0, T_P))
    full = cost.seconds(Load.total([Load.row(1 + TREE, CONTEXT)] * batch))
    levels = depth or depth_of(full, rtt_s)
    own = Scheduling("fcfs", max_batch=batch, hint_tokens=0)
    cohorts = Scheduling("pipeline", max_batch=batch, collect_s=1.0, hint_tokens=0)
    drafting = Drafting(levels, ahead=True, tree=TREE)
    systems = [System(f"{SERVER} {each}", own, server_draft=TREE, server_depth=each) for each in DEPTHS]
    robots = [
        System("cohorts, no pre-drafts", cohorts, drafting=replace(drafting, ahead=False)),
        System("specedge", cohorts, drafting=drafting),
        System("ours", cohorts, drafting=replace(drafting, heads=HEADS)),
    ]
    every = {each.name: (Setting(each, times, workload), batch) for each in systems}
    return every | {each.name: (Setting(each, times, workload), 2 * batch) for each in robots}


def add_options(line: argparse.ArgumentParser) -> None:
    """There are none of its own."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of the setting."""
    window = Window(5.0, 20.0) if options.quick else Window(10.0, 60.0)
    pairs = dict(list(PAIRS.items())[:1]) if options.quick else PAIRS
    batches = BATCHES[:1] if options.quick else BATCHES
    seeds = range(options.seed, options.seed + (1 if options.quick else 3))
    every = {(pair, batch): settings(declared, batch) for pair, declared in pairs.items() for batch in batches}
    best = best_depths(every, options.seed, window, options.jobs)
    cells = [
        (*key, name, setting, robots, seed, window)
        for key, systems in every.items()
        for name, (setting, robots) in systems.items()
        if name == best[key] or not name.startswith(SERVER)
        for seed in seeds
    ]
    found = run_cells("SpecEdge's setting", cell, [each[3:] for each in cells], options.jobs)
    seen: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    for (pair, batch, name, *_), figures in zip(cells, found, strict=True):
        seen.setdefault((pair, batch, name), []).append(figures)
    rows = {
        pair: {batch: compared(declared, batch, {n: f for (p, b, n), f in seen.items() if (p, b) == (pair, batch)})
               for batch in batches}
        for pair, declared in pairs.items()
    }  # fmt: skip
    return {
        "times": {
            "T_p": T_P,
            "RTT": RTT,
            "growth": asdict(GROWTH),
            "context": CONTEXT,
            "easy": EASY,
            "hard": HARD,
            "easy_share": EASY_SHARE,
        },
        "window_s": [window.begin, window.end],
        "rows": rows,
        "depths": depths(window, options.jobs, options.quick),
        "layer_split": {pair: layer_split(declared) for pair, declared in pairs.items()},
    }


def best_depths(
    every: Mapping[tuple[str, int], Mapping[str, tuple[Setting, int]]], seed: int, window: Window, jobs: int
) -> dict[tuple[str, int], str]:
    """Return the system whose drafts on the server have the best depth, for each pair and batch."""
    cells = [
        (key, name, setting, robots, seed, window)
        for key, systems in every.items()
        for name, (setting, robots) in systems.items()
        if name.startswith(SERVER)
    ]
    found = run_cells("depth of server_sd", cell, [each[2:] for each in cells], jobs)
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for (key, name, *_), figures in zip(cells, found, strict=True):
        best[key] = max(best.get(key, (0.0, "")), (figures["tokens_per_s"], name))
    return {key: name for key, (_, name) in best.items()}


def cell(setting: Setting, robots: int, seed: int, window: Window) -> dict[str, float]:
    """Return tokens/s, seconds a token of a robot, and tokens a verification."""
    setting = replace(setting, workload=replace(setting.workload, seed=seed))
    figures = run(setting, robots, seed, window, judged=False)
    return {"tokens_per_s": figures.goodput, "itl_s": robots / figures.goodput, "tau": figures.tokens_per_pass}


def compared(pair: Pair, batch: int, seen: Mapping[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of `server_sd` at its best depth and of the others: spreads over seeds, and ratios to it."""
    middles = {name: _spread([each["tokens_per_s"] for each in runs])["median"] for name, runs in seen.items()}
    best = next(name for name in seen if name.startswith(SERVER))
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in seen.items():
        edges = 0 if name == best else 2 * batch
        spreads = {key: _spread([each[key] for each in runs]) for key in runs[0]}
        dollars = (pair.server_price + EDGE_PRICE * edges) / 3600.0
        rows[name] = {**spreads, "robots": edges or batch, "kilotokens_per_dollar": middles[name] / dollars / 1e3}
    base = rows[best]
    for row in rows.values():
        row["times"] = row["tokens_per_s"]["median"] / base["tokens_per_s"]["median"]
        row["itl_times"] = row["itl_s"]["median"] / base["itl_s"]["median"]
        row["dollar_times"] = row["kilotokens_per_dollar"] / base["kilotokens_per_dollar"]
    return rows


def depths(window: Window, jobs: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Return, for each round trip of Fig. 10, the depth of Sec. 4.3 and tokens/s at the depths around it (32B)."""
    pair = PAIRS["Qwen3 32B/1.7B"]
    tried = () if quick else tuple(range(3, 10))
    cells = [(*settings(pair, 1, rtt_s, depth)["specedge"], 0, window) for rtt_s in RTTS for depth in tried]
    found = iter(run_cells("depths", cell, cells, jobs))
    rows = {}
    for rtt_s, printed in RTTS.items():
        by_depth = {str(depth): next(found)["tokens_per_s"] for depth in tried}
        best = max(by_depth, key=lambda depth: by_depth[depth]) if by_depth else None
        rows[f"{1e3 * rtt_s:g} ms"] = {
            "depth": depth_of(pair.verify_s, rtt_s), "paper": printed, "best": best, "at": by_depth,
        }  # fmt: skip
    return rows


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
    Column("1000 tokens/$", "kilotokens_per_dollar", ".1f"), Column("times", "dollar_times"),
)  # fmt: skip
DEPTH_COLUMNS = (Column("depth", "depth", ".0f"), Column("paper", "paper", ".0f"), Column("best here", "best"))


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    parts = [
        f"SpecEdge's setting; measured from {data['window_s'][0]:g} to {data['window_s'][1]:g} s, spreads over seeds",
        "assumed, not in the paper: T_q grows with the batch as WISP's Table 12 has it; the server's draft forward "
        f"takes T_p, too; the draft model's first candidate is right at {EASY_SHARE:.0%} of positions with "
        f"{EASY[0]:.0%}, else with {HARD[0]:.0%}, which gives about the paper's tokens a verification of server_sd",
        f"cohorts: SpecEdge without pre-drafts; specedge: one path goes on; ours: {HEADS} places go on in one forward",
    ]
    for pair, by_batch in data["rows"].items():
        for batch, rows in by_batch.items():
            parts += [f"\n{pair}, batch {batch}", figures_table("system", rows, COLUMNS)]
        paper = PAIRS[pair].paper
        parts.append(f"paper, batch 1: {paper[0]:.2f}x tokens/s, {paper[1]:.2f}x tokens a dollar, "
                     f"{paper[2]:.2f}x tokens a verification, 11.24 % less latency on average")  # fmt: skip
        parts.append(f"layer split: {1e3 * data['layer_split'][pair]['itl_s']:.1f} ms a token")
    parts += ["\ndepth of the drafts by round trip, 32B", figures_table("RTT", data["depths"], DEPTH_COLUMNS)]
    parts += ["", verdicts(data)]
    return "\n".join(parts)


def verdicts(data: Mapping[str, Any]) -> str:
    """Return for every goal whether `ours` meets it at batch 1, by pair."""
    lines = []
    for pair, by_batch in data["rows"].items():
        row = next(iter(by_batch.values()))["ours"]
        found = {
            "tokens/s": row["times"],
            "inter-token latency": row["itl_times"],
            "tokens a dollar": row["dollar_times"],
        }
        for name, goal in GOALS.items():
            met = found[name] < goal if name == "inter-token latency" else found[name] >= goal
            word = "met" if met else "NOT met"
            lines.append(f"goal, {pair}: {name} {goal:.2f}x server_sd: {found[name]:.2f}x, {word}")
    return "\n".join(lines)
