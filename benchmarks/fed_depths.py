"""How often a fed head's tokens are right, by their depth in a draft, beside the draft model's: docs/fed_head.png.

    python -m benchmarks.fed_depths "trained 10 deep=models/fed_head" --out docs/fed_head.png

At depth 1 a head continues from the target's features alone, at depth m its last m - 1 features are its own. Figures
are those of each folder's results.json, which `adapters_training fed-head` measures on held-out answers of the target.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.plots import new_figure
from vlm_nav_evaluation.tables import table

RESULTS_FILE = "results.json"
COLOURS = ("#e45756", "#f58518", "#54a24b", "#b279a2")
DRAFT = "draft model"


def named(text: str) -> tuple[str, Path]:
    """Read NAME=FOLDER; an argparse type."""
    name, equal, folder = text.partition("=")
    if not (name and equal and folder):
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=FOLDER")
    return name, Path(folder)


def results(folder: Path) -> dict[str, Any]:
    """Return a head's measured results. Raises ValueError, naming the file, where there are none."""
    path = folder / RESULTS_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no results of a fed head's training ({error})") from None
    if not isinstance(found, dict) or "right at depth" not in found.get("head", {}):
        raise ValueError(f"{path}: no results of a fed head's training (they have no shares by depth)")
    return found


def curves(heads: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is compared by name: each head's figures, then those of the first draft model."""
    found = {name: each["head"] for name, each in heads.items()}
    drafts = [each["draft"] for each in heads.values() if "draft" in each]
    return found | ({DRAFT: drafts[0]} if drafts else {})


def plot(heads: Mapping[str, dict[str, Any]]) -> Figure:
    """Return the shares by depth."""
    figure = new_figure(3.6)
    axes = figure.subplots()
    colours = iter(COLOURS)
    for name, each in curves(heads).items():
        shares, is_draft = each["right at depth"], name == DRAFT
        axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], marker="o", markersize=4, label=name,
                  color="#4c78a8" if is_draft else next(colours), linestyle="--" if is_draft else "-")  # fmt: skip
    axes.set_xlabel("depth in the draft, tokens behind the last one that the target has fed")
    axes.set_ylabel("right, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.fed_depths", __doc__)
    default = [("fed head", PROJECT / "models" / "fed_head")]
    line.add_argument("heads", nargs="*", type=named, default=default, metavar="NAME=FOLDER", help="heads to compare")
    line.add_argument(
        "--out", type=Path, default=PROJECT / "out" / "fed_head.png", help="the plot (default: %(default)s)"
    )
    return line


def run(options: argparse.Namespace) -> None:
    """Print the table and write the plot. Raises ValueError where a folder has no results."""
    heads = {name: results(folder) for name, folder in options.heads[: len(COLOURS)]}
    compared = curves(heads)
    deepest = max(len(each["right at depth"]) for each in compared.values())
    depths = [depth for depth in (1, 2, 4, 8, 12, 16) if depth <= deepest]
    rows = [
        (name, f"{each['tokens a verification']:.2f}", *(f"{share:.1%}" for share in _at(each, depths)))
        for name, each in compared.items()
    ]
    print(table(("", "tokens a verification", *(f"right at {depth}" for depth in depths)), rows))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot(heads).savefig(options.out, dpi=100)
    print(options.out)


def _at(figures: dict[str, Any], depths: list[int]) -> list[float]:
    shares = figures["right at depth"]
    return [shares[depth - 1] for depth in depths if depth <= len(shares)]


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
