"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.decoding.common import GO2_SYNTHETIC, VIRTUAL, arm_figures, go2, save
from benchmarks.decoding.plots import plot_ablation
from benchmarks.recordings import recorded
from edge_drafter import Mode
from evaluation.experiment.run import Arm
from evaluation.plots import keep
from evaluation.tables import Column, figures_table
from evaluation.virtual_time import Recording, Timings, VirtualTime
from evaluation.virtual_time.figures import sd_at

FULL, SD = Mode.FULL.value, Mode.SD.value
STEPS = (40, 6, "recorded frames; a fifth as many are synthetic, whose answers are five times as long")
WITHOUT = {
    "drafts ahead": "ahead=off",
    "own guess": "own_guess=off,ahead=off",
    "early tokens": "early_tokens=off",
    "best leaf first": "best_first=off,branches=6",
    "trees (chains)": "draft_tokens=0,width=1",
    "second children": "width=1",
    "several leaves": "leaves=1",
    "a large tree": "max_nodes=64",
    "earlier answers": "ngrams=off",
    "the ledger": "idle=wait",
    "partial drafts": "partial=off",
    "truncation": "truncate=off",
    "interruption": "interrupt=off",
    "predicted ends": "stop_below=0",
}
"""`full` with one technique off, as `--drafting` takes it. Without a queue of branches best_first needs one."""
WITH = {
    "early tokens (fsd)": "early_tokens=on,branches=6,leaves=6",
    "own guess": "own_guess=on",
    "own guess, ahead": "own_guess=on,ahead=on,ahead_above=0",
    "trees": "width=2,draft_tokens=16,leaves=4",
    "trees, own guess": "width=2,draft_tokens=16,leaves=4,own_guess=on,best_first=on",
    "earlier answers": "ngrams=on",
    "the ledger": "idle=ledger",
    "truncation": "truncate=on",
    "gamma=auto": "gamma=auto",
}
"""`sd` with one technique on; drafts ahead and best leaf first need a pre-draft to work on."""
WHOLE = "nothing changed"
COLUMNS = (
    Column("ms/token", "ms_per_token", ".0f"),
    Column("x time", "slower"),
    Column("useful (gamma 4)", "useful"),
    Column("misses", "miss_rate", ".0%"),
    Column("passes/token", "passes_per_token"),
    Column("draft forwards/token", "forwards_per_token"),
    Column("", "drafting", ""),
)


def run(options: argparse.Namespace) -> None:
    """Print a table for each recording, plot both, and save what was asked."""
    timings, pair = go2(options.cost), recorded(options, options.steps)
    sources = {"embedded pair": pair, "synthetic": GO2_SYNTHETIC.draw(max(1, options.steps // 5))}
    print(f"{timings}\n{VIRTUAL}")
    found = {name: ablate(recording, timings) for name, recording in sources.items()}
    for name, arms in found.items():
        print(f"\n{name}: {len(sources[name].steps)} steps")
        for arm, first in (("without", "full without"), ("with", "sd with")):
            print(figures_table(first, {row["name"]: row for row in arms[arm]}, COLUMNS))
    bars = {name: arms["without"][1:] for name, arms in found.items()}
    keep(plot_ablation(bars, timings.cost_words), "decoding_ablation", options)
    counts = {name: len(recording.steps) for name, recording in sources.items()}
    save("ablation", options, {"kind": VIRTUAL, "steps": counts, "sources": found}, timings, pair)


def ablate(recording: Recording, timings: Timings) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first.

    slower: how many times as long as in the whole mode its steps took, frame by frame.
    """
    tau, found = sd_at(4, recording, timings)["tau"], {}
    for kind, mode, changes in (("without", FULL, WITHOUT), ("with", SD, WITH)):
        variants = {WHOLE: "", **changes}
        arms = [Arm[Any](name, mode, {"text": text}) for name, text in variants.items()]
        run = VirtualTime(recording, timings).run(arms)
        names = ("busy_s_per_s", "tau", "passes_per_token", "forwards_per_token", "miss_rate")
        found[kind] = [
            {"name": name, "drafting": variants[name], "slower": run.times_faster(name, WHOLE),
             "useful": row.pop("busy_s_per_s") / tau, **row}
            for name, row in arm_figures(run, timings, *names).items()
        ]  # fmt: skip
    return found
