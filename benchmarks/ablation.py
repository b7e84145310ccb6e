"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times.

Of `full` as shipped, of `full` as it is fastest there, and the same without earlier answers; of `sd` as shipped and as
it is fastest. What a mode is tuned on is not what is reported.

Two tables of the papers stand in its place where they are asked for. `--queues`: Early Exits' Table 7 at the RTX's
times, `fsd` by Algorithms 1 and 2, with n branches for n threads, and what its exits name (`exit_queues.named`).
`--picospec`: the rows of PicoSpec's Tables 1 to 3 at its times, `pipelined` without each of its parts, and what it is
compared with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import exit_queues, picospec
from benchmarks.recordings import VIRTUAL, add_cost, add_recording, of_recording, recorded
from edge_drafter import Mode
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.plots import MODE_COLOURS, PAPER, SMALL, add_outputs, keep, new_figure, plain
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, figures_of, load_timings, run_arms
from vlm_nav_evaluation.virtual_time.tuning import NO_NGRAMS, QUICK_BUDGET, TUNED, arms_at_best, split

FULL, SD = Mode.FULL.value, Mode.SD.value
STEPS, QUICK_STEPS = 40, 3
SYNTHETIC = Synthetic()
"""As Early Exits, Table 8 has its run on the Go2: tau 2.92, 55.6 % of verdicts named by no exit, mean exit 8."""
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
    "effort at most": "effort=1",
    "effort halved": "effort=0.5",
    "effort at least": "effort=0",
}
"""`full` with one technique off, as `--drafting` takes it. Without a queue of branches best_first needs one.

Effort has no off: with 1 every draft forward that may save time runs, with 0 only those that save more than they take.
"""
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
    fewest = QUICK_STEPS if options.quick else 0
    if options.picospec:
        return picospec.picospec(options, options.steps or fewest or picospec.STEPS)
    steps = options.steps or fewest or STEPS
    if options.queues:
        # Answers are all that is needed, so that a recording may be of models that are not there any more.
        recording = Recording.load(options.recording) if options.recording else recorded(options, steps)
        return exit_queues.queues(options, replace(recording, steps=recording.steps[:steps]))
    options.steps = steps
    timings, pair = load_timings("go2", options.cost).with_server_draft(), recorded(options, options.steps)
    synthetic = replace(SYNTHETIC, tokens=picospec.QUICK_TOKENS) if options.quick else SYNTHETIC
    sources = {"embedded pair": pair, "synthetic": synthetic.draw(max(2, options.steps // 5))}
    print(f"{timings}\n{VIRTUAL}")
    found, counts = {}, {}
    for name, recording in sources.items():
        first, shown = split(recording)
        counts[name] = {"tuned_on": len(first.steps), "reported": len(shown.steps)}
        print(f"\n{name}: {len(shown.steps)} steps, tuned on {len(first.steps)} others")
        found[name] = ablate(first, shown, timings, QUICK_BUDGET if options.quick else None)
        for way, rows in found[name].items():
            print(
                f"\n{markdown(f'`{way}` with' if way.startswith(SD) else f'`{way}` without', by_name(rows), COLUMNS)}"
            )
    bars = {name: arms[FULL][1:] for name, arms in found.items()}
    keep(plot(bars, timings.cost_words), "decoding_ablation", options)
    if options.save:
        about = {"settings": settings_of(options), **provenance(options), **of_recording(pair)}
        about |= {"timings": asdict(timings), "kind": VIRTUAL}
        name = f"{command.result_name('decoding', options.frames)}_ablation"
        write_result(name, {**about, "steps": counts, "sources": found})


def by_name(rows: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return rows by their names, with what was changed as code."""
    return {row["name"]: {**row, "drafting": f"`{row['drafting']}`" if row["drafting"] else ""} for row in rows}


def ablate(
    first: Recording, shown: Recording, timings: Timings, budget: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first, by `WAYS`.

    first: answers to tune on. budget: candidates of each mode, as in `tuning.candidates`. slower: how many times as
    long as in the whole mode its steps took, frame by frame.
    """
    bases, _ = arms_at_best((FULL, SD), first, timings, budget=budget)
    found = {}
    for base in (each for each in bases if each.name in WAYS):
        own, changes = base.changes.get("text", ""), WAYS[base.name]
        # Without earlier answers already, there is nothing to switch off.
        variants = {WHOLE: "", **{name: text for name, text in changes.items() if text not in own.split(",")}}
        texts = {name: ",".join(filter(None, (own, text))) for name, text in variants.items()}
        arms = [Arm(name, base.mode, {"text": text}) for name, text in texts.items()]
        run = run_arms(arms, shown, timings)
        found[base.name] = [
            {
                "name": name,
                "drafting": texts[name],
                "slower": run.times_faster(name, WHOLE),
                "ms_per_token": 1e3 * each["per_token_s"]["median"],
                **{figure: each[figure] for figure in SHOWN},
            }
            for name, each in figures_of(run, timings).items()
        ]
    return found


def plot(sources: Mapping[str, Sequence[Mapping[str, Any]]], cost: str) -> Figure:
    """Return bars of a step's time without each technique over that of `full`, one panel for each recording.

    cost: what loads cost, in words.
    """
    figure = new_figure(1.8 + 0.4 * max(len(rows) for rows in sources.values()))
    panels = figure.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, sources.items(), strict=True):
        places = np.arange(len(rows))
        low, middle, high = 100.0 * (np.array([row["slower"] for row in rows]).T - 1.0)
        axes.barh(
            places, middle, 0.66, color=[MODE_COLOURS[FULL if value > 0 else Mode.EDGE.value] for value in middle]
        )
        axes.hlines(places, low, high, color=PAPER, linewidth=1.2)
        for place, value in zip(places, middle, strict=True):
            label = f"{round(value):+d} %" if round(value) else "0 %"
            axes.text(1.0, place, label, va="center", fontsize=SMALL, transform=axes.get_yaxis_transform())
        axes.axvline(0.0, color=PAPER, linewidth=1.0)
        axes.set_yticks(places, [row["name"] for row in rows])
        axes.set_title(title)
        axes.set_xlabel("step time, % more than with it")
        plain(axes, "x")
    panels[0].invert_yaxis()
    title = f"What {FULL} loses without one technique\n(Go2 times, virtual; line: 95 % interval)"
    figure.suptitle(f"{title}\n{cost}", fontsize=14)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.ablation", __doc__)
    add_outputs(line)
    add_cost(line)
    shown = "recorded frames; a fifth as many answers, five times as long, are synthetic"
    line.add_argument("--steps", type=int, help=f"{shown} (default: {STEPS}, with --quick {QUICK_STEPS})")
    papers = line.add_mutually_exclusive_group()
    papers.add_argument("--queues", action="store_true", help="the queues of Early Exits, Table 7, in their place")
    papers.add_argument(
        "--picospec", action="store_true", help="PicoSpec's Tables 1 to 3 instead, of synthetic answers"
    )
    add_recording(line)
    return line


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
