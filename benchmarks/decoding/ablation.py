"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks.clocked import Recording, Timings
from benchmarks.clocked.figures import compare, figures_of, run_mode
from benchmarks.decoding.common import (
    GO2_FACTS,
    VIRTUAL,
    add_facts,
    go2,
    interval,
    number,
    recorded,
    save,
    share,
    steps_of,
)
from benchmarks.decoding.pictures import draw_ablation
from edge_drafter import Mode, StepResult
from evaluation.figures import times_faster
from evaluation.plots import add_outputs, keep
from evaluation.tables import table

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
"""`full` with one technique off, as `--drafting` says it. Without a queue of branches best_first needs one."""
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
STEPS, QUICK_STEPS = 40, 6
DRAWN_SHARE = 5
"""Drawn answers are about so many times as long as recorded ones; so many fewer are drawn."""


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `ablation` takes."""
    add_outputs(line)
    line.add_argument("--steps", type=int, help=f"recorded frames; a fifth as many are drawn (default: {STEPS}, with "
                      f"--quick {QUICK_STEPS})")  # fmt: skip
    line.set_defaults(own_steps=(STEPS, QUICK_STEPS))
    add_facts(line)


def run(options: argparse.Namespace) -> None:
    """Print a table for each source of facts, draw both, and save what was asked."""
    steps, timings = steps_of(options), go2()
    sources = {
        "embedded pair": recorded(options, steps),
        "drawn facts": GO2_FACTS.draw(max(1, steps // DRAWN_SHARE)),
    }
    print(f"{timings}\n{VIRTUAL}")
    found = {}
    with tqdm(total=len(sources) * (len(WITHOUT) + len(WITH) + 3), unit="run", disable=None) as bar:
        for name, recording in sources.items():
            found[name] = ablate(recording, timings, bar.update)
    for name, arms in found.items():
        print(f"\n{name}: {len(sources[name].steps)} steps")
        print(report(arms["without"], "full without", "x full's time"))
        print(report(arms["with"], "sd with", "x sd's time"))
    keep(draw_ablation({name: arms["without"][1:] for name, arms in found.items()}), "decoding_ablation", options)
    counts = {name: len(recording.steps) for name, recording in sources.items()}
    data = {"kind": VIRTUAL, "steps": counts, "sources": found}
    save("ablation", options, data, timings, sources["embedded pair"])


def ablate(
    recording: Recording, timings: Timings, tell: Callable[[], object] = lambda: None
) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first."""

    def decoded(mode: str, text: str) -> list[StepResult]:
        results = run_mode(mode, recording, timings, text=text)
        tell()
        return results

    four = figures_of(run_mode(SD, recording, timings, gamma=4, stop_below=0.0), timings)
    tell()
    arms = {}
    for kind, mode, changes in (("without", FULL, WITHOUT), ("with", SD, WITH)):
        whole = decoded(mode, "")
        parts = {"nothing changed": whole, **{name: decoded(mode, text) for name, text in changes.items()}}
        arms[kind] = rows(parts, whole, timings, four, {"nothing changed": "", **changes})
    return arms


def rows(
    parts: Mapping[str, Sequence[StepResult]],
    whole: Sequence[StepResult],
    timings: Timings,
    four: Mapping[str, Any],
    changes: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return a row for each variant: its figures, and how many times as long as `whole` its steps took, by frame."""
    figures = {name: figures_of(results, timings) for name, results in parts.items()}
    compared = compare(figures, timings, (4, four), four["tau"])
    return [
        {
            "name": name,
            "drafting": changes[name],
            "slower": times_faster([each.stats for each in parts[name]], [each.stats for each in whole]),
            "ms_per_token": 1e3 * median(each.stats.per_token_s for each in parts[name]),
            **{key: entry[key] for key in ("useful", "tau", "passes_per_token", "forwards_per_token", "miss_rate")},
        }
        for name, entry in compared.items()
    ]


def report(arm: Sequence[Mapping[str, Any]], first: str, ratio: str) -> str:
    """Return a table with a row per variant."""
    header = (first, "ms/token", ratio, "useful (gamma 4)", "misses", "passes/token", "draft forwards/token", "")
    return table(
        header,
        [
            (
                row["name"],
                f"{row['ms_per_token']:.0f}",
                interval(row["slower"]),
                number(row["useful"]),
                share(row["miss_rate"]),
                number(row["passes_per_token"]),
                number(row["forwards_per_token"]),
                f" {row['drafting']}",
            )
            for row in arm
        ],
    )
