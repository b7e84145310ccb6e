"""`compare`: two replay reports side by side: times, rates, agreement, and the frames that are answered differently."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculation.settings import path_flag
from vlm_nav_evaluation.replay.agreement import percent
from vlm_nav_evaluation.replay.report import REPORT
from vlm_nav_evaluation.tables import MS, Column, table

SHOWN_FRAMES = 20
FIGURES = (
    Column("time to action p50, ms", "figures.total_percentiles_s.p50", ".0f", MS),
    Column("time to action p90, ms", "figures.total_percentiles_s.p90", ".0f", MS),
    Column("time to action p99, ms", "figures.total_percentiles_s.p99", ".0f", MS),
    Column("TTFT median, ms", "figures.first_commit_s.median", ".0f", MS),
    Column("TPOT median, ms", "figures.tpot_s.median", ".1f", MS),
    Column("staleness p50, ms", "stale_s.p50", ".0f", MS),
    Column("tau", "figures.tau"),
    Column("draft tokens accepted", "figures.acceptance", ".3f"),
    Column("cache miss rate", "figures.miss_rate", ".3f"),
    Column("target passes per token", "figures.passes_per_token", ".3f"),
    Column("oracle: kind", "oracle.kind", ".3f"),
    Column("oracle: exact", "oracle.exact", ".3f"),
    Column("oracle: stop precision", "oracle.stop_precision", ".3f"),
    Column("oracle: stop recall", "oracle.stop_recall", ".3f"),
)
"""Rows of the comparison, in an arm of the report."""


def load(path: Path) -> dict[str, Any]:
    """Read a report folder or its JSON. Raises ValueError, in one sentence, for anything else."""
    file = path / REPORT if path.is_dir() else path
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} is no report: {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file} is no valid JSON: {error}") from None
    needed = ("settings", "machine", "arms", "answers", "tokens")
    if missing := [name for name in needed if not isinstance(data, dict) or name not in data]:
        raise ValueError(f"{file} is no report of a replay: it has no {', '.join(missing)}")
    return dict(data)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every setting in which two reports differ, the machine included."""
    before, after = ({**data["settings"], "machine": data["machine"].partition(", load")[0]} for data in (one, other))
    return [
        f"{name} differs: {before.get(name)!r} against {after.get(name)!r}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def changed_answers(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return, per arm of both reports: frames in both, frames with other tokens, and those with another action."""
    changed = {}
    for label, left in one["answers"].items():
        if label in other["answers"]:
            both = {frame: (left[frame], right) for frame, right in other["answers"][label].items() if frame in left}
            changed[label] = {
                "frames": len(both),
                "other_tokens": sum(before[1] != after[1] for before, after in both.values()),
                "other_action": {
                    frame: [before[0], after[0]] for frame, (before, after) in both.items() if before[0] != after[0]
                },
            }
    return changed


def side_by_side(one: Mapping[str, Any], other: Mapping[str, Any], label: str) -> str:
    """Return the figures of one arm as a table: A, B and B / A."""
    rows = []
    for figure in FIGURES:
        left, right = (figure.value(data["arms"][label]) for data in (one, other))
        if left is not None or right is not None:
            ratio = f"{right / left:.2f}" if left and right is not None else "-"
            rows.append((figure.title, *(figure.cell(data["arms"][label]) for data in (one, other)), ratio))
    return table((label, "A", "B", "B / A"), rows)


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ValueError for what is no report."""
    one, other = load(options.a), load(options.b)
    print(f"A {options.a}\nB {options.b}")
    for sentence in differences(one, other):
        print(f"  {sentence}")
    shared = one["arms"].keys() & other["arms"].keys()
    if single := [label for label in {**one["arms"], **other["arms"]} if label not in shared]:
        print(f"  only in one of the two: {', '.join(single)}")
    for label in one["arms"]:
        if label in shared:
            print(f"\n{side_by_side(one, other, label)}")
    print()
    for label, entry in changed_answers(one, other).items():
        count, actions = entry["frames"], entry["other_action"]
        if not count:
            print(f"{label}: no frame is in both")
            continue
        print(
            f"{label}: tokens differ on {entry['other_tokens']} of {count} frames, actions on {len(actions)} "
            f"({percent(1.0 - len(actions) / count)} agree)"
        )
        lines = [f"  {frame}: {before} -> {after}" for frame, (before, after) in actions.items()]
        more = len(lines) - SHOWN_FRAMES
        print(*lines[:SHOWN_FRAMES], *([f"  and {more} more"] if more > 0 else []), sep="\n", end="\n" if lines else "")
    return 0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    line = commands.add_parser("compare", help="set two replay reports side by side", description=__doc__)
    line.add_argument("a", type=path_flag, metavar="A", help="report folder, or its report.json")
    line.add_argument("b", type=path_flag, metavar="B", help="report folder, or its report.json")
    line.set_defaults(run=run)
