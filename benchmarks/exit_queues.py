"""The queues of Early Exits' Table 7 at the RTX's times, `fsd` by Algorithms 1 and 2, n branches for n threads.

And what the recording's exits name, by depth. The paper's rule: an exit is as confident as its most probable token
(s = max q), it leaves the server and is drafted for in that order, an early token after another, each of which takes
T_c.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.recordings import VIRTUAL, of_recording
from cloud_verifier.exit_queue import QueuePolicy
from edge_drafter import Mode
from edge_drafter.settings import START_GAMMA
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.plots import MODE_COLOURS, PAPER, keep, new_figure, plain
from vlm_nav_evaluation.results import RESULTS, provenance, settings_of, write_result
from vlm_nav_evaluation.tables import table
from vlm_nav_evaluation.virtual_time import SERVER, Recording, figures_of, load_timings, run_arms

TABLE_7 = {
    ("confidence", "priority"): (79.85, 62.93, 27.57),
    ("confidence", "fifo"): (80.40, 63.48, 27.73),
    ("random", "priority"): (82.32, 63.25, 26.92),
    ("random", "fifo"): (84.56, 65.36, 27.68),
    ("fifo", "priority"): (82.61, 64.43, 27.69),
    ("fifo", "fifo"): (85.43, 65.67, 27.84),
}
"""Misses in percent by the edge's and the server's queue, with `PRINTED` threads."""
PRINTED, THREADS = (3, 5, 10), (1, 3, 5, 10, 15)
TABLE_6 = {
    "Vicuna 7B, 30 threads": (14 / 32, 80.41),
    "Vicuna 13B, 15 threads": (14 / 40, 74.38),
    "Llama2 7B, 30 threads": (9 / 32, 90.37),
    "Go2, Qwen2-VL 7B, 6 threads": (8 / 28, 44.37),
}
"""Early Exits, Tables 6 (RTX) and 8: the mean first exit that is right, as a share of the layers, and hits in percent.
It prints no agreement by layer."""
SMOLLM2_ROWS = {("lens", 5, 256): "no adapter", ("kl256", 12, 128): "rank 256, KL, 12 epochs"}
"""Rows of exits_by_depth.json, by exit, epochs and batch, that are drawn beside the recording's."""


def queues(options: argparse.Namespace, recording: Recording) -> None:
    """Print the misses of Table 7 beside the paper's, and those of our own order, and save what was asked."""
    timings = load_timings("rtx_vicuna_7b", options.cost)
    theirs = replace(recording, reliability={}, by_highest=True)
    rows = [(order, theirs) for order in TABLE_7] + [(("priority", "priority"), recording)]
    arms = []
    for (edge, server), source in rows:
        changes = {"recording": source, "server": SERVER.changed(
            queue_policy=QueuePolicy(server), early_rate=1.0 / timings.one_way_s, early_burst=1)}  # fmt: skip
        for threads in THREADS:
            text = f"queue_policy={edge},branches={threads},leaves={threads}"
            arms.append(Arm(f"{edge}, {server}, {threads}", Mode.FSD.value, {**changes, "text": text}))
    misses = iter(each["miss_rate"] for each in figures_of(run_arms(arms, recording, timings), timings).values())
    found = {f"{edge}, {server}": [next(misses) for _ in THREADS] for (edge, server), _ in rows}
    about = named(recording)
    print(f"{timings}\n{VIRTUAL}\n{about}\nmisses in percent, the paper's in brackets\n")
    lines = []
    for (order, _), values in zip(rows, found.values(), strict=True):
        paper = dict(zip(PRINTED, TABLE_7.get(order, ()), strict=False))
        shown = (
            f"{100 * value:.1f}" + (f" ({paper[n]})" if n in paper else "")
            for n, value in zip(THREADS, values, strict=True)
        )
        lines.append((", ".join(order), *shown))
    print(table(("edge, server", *map(str, THREADS)), lines))
    keep(plot(about, found), "decoding_queues", options)
    if options.save:
        about |= {"settings": settings_of(options), **provenance(options), **of_recording(recording)}
        about |= {"timings": asdict(timings), "kind": VIRTUAL, "threads": THREADS}
        write_result(
            "decoding_queues", {**about, "misses": found, "paper": {", ".join(k): v for k, v in TABLE_7.items()}}
        )


def named(recording: Recording, gamma: int = START_GAMMA) -> dict[str, Any]:
    """Return what exits say about chains of `gamma` drafted tokens: how many different verdicts they give of one, and
    by layer how often the verdict is the target's (`right`) and how often that or an earlier one is (`by then`).

    Every chain begins behind the target's last verdict. Raises ValueError for synthetic exits.
    """
    different, right = list[int](), list[Any]()
    for step in recording.steps:
        if step.exit_tokens is None:
            raise ValueError("synthetic exits have no tokens of their own; give a --recording")
        tokens, drafted, place = np.array(step.tokens), step.draft_tokens[:, 0], 1
        accepted = (drafted == tokens).tolist()
        while place < len(tokens):
            most = min(place + gamma, len(tokens) - 1)
            ends = []
            for column in (*step.exit_tokens.T, tokens):
                end = place
                while end < most and column[end] == drafted[end] and accepted[end]:
                    end += 1
                ends.append((end, int(column[end])))
            *exits, final = ends
            different.append(len(set(exits)))
            right.append([verdict == final for verdict in exits])
            place = final[0] + 1
    by_then = np.maximum.accumulate(np.array(right), axis=1)
    depth = (np.array(recording.exit_layers) + 1) / recording.layers
    is_named = by_then[:, -1]
    return {
        "verifications": len(right),
        "different": float(np.mean(different)),
        "depth": depth.round(4).tolist(),
        "right": np.mean(right, axis=0).round(4).tolist(),
        "by then": by_then.mean(axis=0).round(4).tolist(),
        "mean depth": float(depth[by_then[is_named].argmax(axis=1)].mean()) if is_named.any() else None,
    }


def plot(about: Mapping[str, Any], misses: Mapping[str, Sequence[float]]) -> Figure:
    """Return how many verdicts exits name by depth and the misses by threads, with the paper's figures beside both."""
    figure = new_figure(5.4)
    by_depth, by_threads = figure.subplots(1, 2)
    for name, style in (("right", "o-"), ("by then", "--")):
        by_depth.plot(about["depth"], 100 * np.array(about[name]), style, color=MODE_COLOURS["fsd"], markersize=5,
                      label={"right": "this exit", "by then": "this or an earlier one"}[name])  # fmt: skip
    for number, (name, (depth, hits)) in enumerate(TABLE_6.items()):
        by_depth.plot([depth], [hits], "DsoX"[number], color=PAPER, label=f"paper: {name}")
    smollm2 = json.loads((RESULTS / "exits_by_depth.json").read_text(encoding="utf-8"))["SmolLM2-135M-Instruct"]
    for (name, epochs, batch), label in SMOLLM2_ROWS.items():
        rows = [row for row in smollm2["rows"] if (row["exit"], row["epochs"], row["batch"]) == (name, epochs, batch)]
        rows.sort(key=lambda row: row["layer"])
        by_depth.plot([(row["layer"] + 1) / smollm2["layers"] for row in rows], [100 * row["right"] for row in rows],
                      "s-" if name != "lens" else ":", color=MODE_COLOURS["sd"], markersize=4,
                      label=f"SmolLM2: {label}")  # fmt: skip
    by_depth.set_xlabel("depth of the exit (paper: mean first right one)")
    by_depth.set_ylabel("verdicts of the target, %")
    for order, colour in (("confidence, priority", "fsd"), ("fifo, fifo", "sd")):
        paper = TABLE_7[tuple(order.split(", "))]  # type: ignore[index]
        by_threads.plot(THREADS, 100 * np.array(misses[order]), "o-", color=MODE_COLOURS[colour], label=order)
        by_threads.plot(PRINTED, paper, "D", color=MODE_COLOURS[colour], markeredgecolor=PAPER, label=f"paper: {order}")
    by_threads.set_xlabel("threads")
    by_threads.set_ylabel("misses, %")
    for axes in (by_depth, by_threads):
        axes.set_ylim(0, 100)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
        plain(axes)
    return figure
