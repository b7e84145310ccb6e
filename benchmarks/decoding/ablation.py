"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.decoding.common import GO2_SYNTHETIC, VIRTUAL, add_steps, go2, save, steps_of
from benchmarks.decoding.plots import plot_ablation
from benchmarks.recordings import add_recording, recorded
from edge_drafter import Mode
from evaluation.experiment.run import Arm
from evaluation.plots import add_outputs, keep
from evaluation.tables import Column, figures_table
from evaluation.virtual_time import Recording, Timings, VirtualTime
from evaluation.virtual_time.figures import figures_of, sd_at

FULL, SD = Mode.FULL.value, Mode.SD.value
WITHOUT = {
    "drafts ahead": "ahead=off",
    "own guess": "own_guess=off,ahead=off",
    "early tokens": "early_tokens=off",
    "best leaf first": "best_first=off,branches=6",
    "trees (chains)": "draft_tokens=0,width=1",
    "second children": "width=1",
    "several leaves": "leaves=1",
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
SYNTHETIC_SHARE = 5
"""Synthetic answers are about so many times as long as recorded ones; so many fewer are decoded."""


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `ablation` takes."""
    add_outputs(line)
    add_steps(line, 40, 6, "recorded frames; a fifth as many are synthetic")
    add_recording(line)


def run(options: argparse.Namespace) -> None:
    """Print a table for each recording, plot both, and save what was asked."""
    steps, timings = steps_of(options), go2()
    sources = {
        "embedded pair": recorded(options, steps),
        "synthetic": GO2_SYNTHETIC.draw(max(1, steps // SYNTHETIC_SHARE)),
    }
    print(f"{timings}\n{VIRTUAL}")
    found = {name: ablate(recording, timings) for name, recording in sources.items()}
    for name, arms in found.items():
        print(f"\n{name}: {len(sources[name].steps)} steps")
        for arm, first in (("without", "full without"), ("with", "sd with")):
            print(figures_table(first, {row["name"]: row for row in arms[arm]}, COLUMNS))
    keep(plot_ablation({name: arms["without"][1:] for name, arms in found.items()}), "decoding_ablation", options)
    counts = {name: len(recording.steps) for name, recording in sources.items()}
    data = {"kind": VIRTUAL, "steps": counts, "sources": found}
    save("ablation", options, data, timings, sources["embedded pair"])


def ablate(recording: Recording, timings: Timings) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first.

    slower: how many times as long as in the whole mode its steps took, frame by frame.
    """
    tau = sd_at(4, recording, timings)["tau"]
    backend, found = VirtualTime(recording, timings), {}
    for kind, mode, changes in (("without", FULL, WITHOUT), ("with", SD, WITH)):
        variants = {WHOLE: "", **changes}
        run = backend.run([Arm(name, mode, {"text": text}) for name, text in variants.items()])
        found[kind] = [
            {
                "name": name,
                "drafting": text,
                "slower": run.times_faster(name, WHOLE),
                "ms_per_token": 1e3 * figures["per_token_s"]["median"],
                "useful": figures["busy_s_per_s"] / tau,
                **{key: figures[key] for key in ("tau", "passes_per_token", "forwards_per_token", "miss_rate")},
            }
            for name, text in variants.items()
            for figures in (figures_of(run.answers[name], timings),)
        ]
    return found
