"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times.

Of `full` as shipped, of `full` as it is fastest there, and the same without earlier answers; of `sd` as shipped and as
it is fastest. What a mode is tuned on is not what is reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.decoding.common import GO2_SYNTHETIC, VIRTUAL, arm_figures, go2, save
from benchmarks.decoding.plots import plot_ablation
from benchmarks.recordings import recorded
from edge_drafter import Mode
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.plots import keep
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.tuning import NO_NGRAMS, TUNED, arms_at_best, split

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
    "longer trees": "extend=off",
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
    Column("busy", "target_busy"),
    Column("misses", "miss_rate", ".0%"),
    Column("passes/token", "passes_per_token"),
    Column("draft forwards/token", "forwards_per_token"),
    Column("edge CPU s", "cpu_s_per_step"),
    Column("", "drafting", ""),
)
SHOWN = ("target_busy", "passes_per_token", "forwards_per_token", "miss_rate", "cpu_s_per_step")
WAYS = {FULL: WITHOUT, f"{FULL}, {TUNED}": WITHOUT, f"{FULL}, {NO_NGRAMS}, {TUNED}": WITHOUT, SD: WITH,
        f"{SD}, {TUNED}": WITH}  # fmt: skip
"""What is changed of what; an arm of `arms_at_best`."""


def run(options: argparse.Namespace) -> None:
    """Print a table for each recording and way, plot `full`'s, and save what was asked."""
    timings, pair = go2(options.cost), recorded(options, options.steps)
    sources = {"embedded pair": pair, "synthetic": GO2_SYNTHETIC.draw(max(2, options.steps // 5))}
    print(f"{timings}\n{VIRTUAL}")
    found, counts = {}, {}
    for name, recording in sources.items():
        first, shown = split(recording)
        counts[name] = {"tuned_on": len(first.steps), "reported": len(shown.steps)}
        print(f"\n{name}: {len(shown.steps)} steps, tuned on {len(first.steps)} others")
        found[name] = ablate(first, shown, timings)
        for way, rows in found[name].items():
            print(
                f"\n{markdown(f'`{way}` with' if way.startswith(SD) else f'`{way}` without', by_name(rows), COLUMNS)}"
            )
    for way, plotted in ((FULL, "decoding_ablation"), (f"{FULL}, {NO_NGRAMS}, {TUNED}", "decoding_ablation_tuned")):
        bars = {name: arms[way][1:] for name, arms in found.items()}
        keep(plot_ablation(bars, way, timings.cost_words), plotted, options)
    save("ablation", options, {"kind": VIRTUAL, "steps": counts, "sources": found}, timings, pair)


def by_name(rows: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return rows by their names, with what was changed as code."""
    return {row["name"]: {**row, "drafting": f"`{row['drafting']}`" if row["drafting"] else ""} for row in rows}


def ablate(first: Recording, shown: Recording, timings: Timings) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first, by `WAYS`.

    first: answers to tune on. slower: how many times as long as in the whole mode its steps took, frame by frame.
    """
    bases, _ = arms_at_best((FULL, SD), first, timings)
    found = {}
    for base in (each for each in bases if each.name in WAYS):
        own, changes = base.changes.get("text", ""), WAYS[base.name]
        # Without earlier answers already, there is nothing to switch off.
        variants = {WHOLE: "", **{name: text for name, text in changes.items() if text not in own.split(",")}}
        texts = {name: ",".join(filter(None, (own, text))) for name, text in variants.items()}
        run = VirtualTime(shown, timings).run(
            [Arm[Any](name, base.mode, {"text": text}) for name, text in texts.items()]
        )
        found[base.name] = [
            {"name": name, "drafting": texts[name], "slower": run.times_faster(name, WHOLE), **row}
            for name, row in arm_figures(run, timings, *SHOWN).items()
        ]
    return found
