"""What stopping at predicted rejections saves: every draft with and without its predictor, over real sockets.

Each pair is a draft model and its predictor. With and without, in every mode, take turns on every frame, in shuffled
order. WDT: seconds of draft forwards whose token was never committed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_drafter import Mode
from speculation.predictor import OFF
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import Arm, Question, Run
from vlm_nav_evaluation.experiment.sockets import sockets
from vlm_nav_evaluation.tables import MS, Column, figures_table, spread_columns

WARM_UP = 1
MODES = tuple(mode.value for mode in Mode if mode.drafts)
WITH, WITHOUT = "predictor", "none"
COLUMNS = (
    *spread_columns("total_s"),
    Column("WDT ms/token", "wasted_s_per_token", ".2f", MS),
    Column("wasted forwards", "wasted_forwards", ".0%"),
    Column("tokens/draft", "drafted_per_round"),
    Column("accepted", "acceptance", ".0%"),
    Column("tau", "tau"),
    Column("hits", "hit_rate", ".0%"),
    Column("passes/token", "passes_per_token"),
    Column("edge CPU s", "cpu_s_per_step"),
)
CHANGES = (
    Column("WDT per token", "waste_change", "+.0%"),
    Column("median step", "latency_change", "+.1%"),
    Column("mean step", "mean_change", "+.1%"),
    Column("faster steps", "faster_steps", ".0%"),
)


def label(draft: str, mode: str, stops: str) -> str:
    """Return the name of an arm."""
    return f"{draft}, {mode}, {stops}"


def compare(run: Run, drafts: Sequence[str], modes: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each draft and mode, WDT per token and step latency without and with the predictor, and the change.

    `faster_steps`: the share of frames on which the predictor's step was the shorter one.
    """

    def change(pair: Sequence[float]) -> float:
        return pair[1] / pair[0] - 1.0 if pair[0] else 0.0

    figures, rows = run.figures(), []
    for draft, mode in [(draft, mode) for draft in drafts for mode in modes]:
        names = [label(draft, mode, stops) for stops in (WITHOUT, WITH)]
        row: dict[str, Any] = {
            "draft": draft,
            "mode": mode,
            "wasted_s_per_token": [figures[name]["wasted_s_per_token"] for name in names],
            "median_s": [figures[name]["total_s"]["median"] for name in names],
            "mean_change": change([sum(run.seconds(name)) for name in names]),
            "faster_steps": float(np.mean([ratio > 1.0 for ratio in run.ratios(*names)])),
        }
        row |= {"waste_change": change(row["wasted_s_per_token"]), "latency_change": change(row["median_s"])}
        rows.append(row)
    return rows


def pair(words: str) -> tuple[str, Path, str]:
    """Read NAME=DRAFT or NAME=DRAFT,PREDICTOR; without a predictor it is the one beside the draft; an argparse type."""
    name, equals, folders = words.partition("=")
    draft, _, predictor = folders.partition(",")
    if not (name and equals and draft):
        raise argparse.ArgumentTypeError(f"{words!r}: give NAME=DRAFT or NAME=DRAFT,PREDICTOR")
    return name, Path(draft), predictor or draft


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    weaken = "a weak draft to compare with (docs/training.md): python -m adapters_training predictor weaken --help"
    line = command.experiment_line(
        "benchmarks.predictor", __doc__, 50, profile="go2_a100_scaled", modes=MODES, chosen=["sd", "fsd", "full"],
        drafting=True, epilog=weaken,
    )  # fmt: skip
    line.add_argument("--draft", type=pair, action="append", metavar="NAME=DRAFT[,PREDICTOR]",
                      help="folders; may be repeated (default: shipped=, the draft model)")  # fmt: skip
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    drafts = options.draft or [pair(f"shipped={options.draft_model}")]
    names = [name for name, _, _ in drafts]
    if len(set(names)) < len(names):
        raise ValueError(f"--draft: two drafts have one name: {', '.join(names)}")
    changes = {
        (name, stops): {"draft_model": folder, "predictor": choice}
        for name, folder, predictor in drafts
        for stops, choice in ((WITHOUT, OFF), (WITH, predictor))
    }
    arms: list[Arm[Question]] = [
        Arm(label(name, mode, stops), mode, each) for (name, stops), each in changes.items() for mode in options.modes
    ]
    asked = asked_of(options, options.steps)
    options.draft_model = drafts[0][1]
    with sockets(options, options.modes, "--max-sessions", str(4 * len(names))) as edges:
        measured = edges.run(arms, asked, asked[:WARM_UP], command.journal_of(options))
        found = {name: edges.edge(**changes[name, WITH]).predictor for name in names}
    figures, rows = measured.figures(), compare(measured, names, options.modes)
    print(command.described(options))
    print(figures_table("draft, mode, stops", figures, COLUMNS))
    print(figures_table("with the predictor", {f"{row['draft']}, {row['mode']}": row for row in rows}, CHANGES))
    print(f"frames on which the answers differ: {measured.different} of {options.steps}")
    thresholds = {name: predictor.threshold for name, predictor in found.items() if predictor is not None}
    command.finish(options, "predictor", {"thresholds": thresholds, "compared": rows, "figures": figures}, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
