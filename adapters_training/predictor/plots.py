"""Plot of a comparison: is the probability calibrated, and what does stopping save?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from adapters_training.predictor.drafts import Drafts
from adapters_training.predictor.measure import GRID, Timings, calibration, replay

COLOURS = ("#4c78a8", "#9d9d9d")


@dataclass(frozen=True)
class Shown:
    """A predictor on test drafts: its chance for every token, and its threshold."""

    chances: npt.NDArray[np.float64]
    threshold: float


def plot(path: Path, test: Drafts, families: Mapping[str, Shown], gamma: int, timings: Timings) -> None:
    """Write the plot as PNG."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    calibrated, saved = figure.subplots(1, 2)
    known = test.label >= 0
    for colour, (name, shown) in zip(COLOURS, families.items(), strict=True):
        bins = calibration(shown.chances[known], test.label[known].astype(np.float64))
        chance, share, _ = zip(*bins, strict=True)
        calibrated.plot(chance, share, "o-", color=colour, label=name, markersize=5)
        outcomes = [replay(test, shown.chances, threshold, gamma, timings) for threshold in (0.0, *GRID)]
        saved.plot([1e3 * each.wasted_s for each in outcomes], [1e3 * each.token_s for each in outcomes], "-",
                   color=colour, label=name)  # fmt: skip
        chosen = replay(test, shown.chances, shown.threshold, gamma, timings)
        saved.plot([1e3 * chosen.wasted_s], [1e3 * chosen.token_s], "o", color=colour, markersize=9)
    calibrated.plot([0, 1], [0, 1], "k:", linewidth=1)
    calibrated.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="share accepted by the target")
    calibrated.set_title("Calibration on rooms never seen\n(each dot a tenth of the tokens)", fontsize=10)
    calibrated.grid(alpha=0.3)
    calibrated.legend(loc="upper left")
    never = replay(test, next(iter(families.values())).chances, 0.0, gamma, timings)
    saved.axhline(1e3 * never.token_s, color="k", linestyle=":", linewidth=1)
    saved.annotate("never stopping", (1e3 * never.wasted_s, 1e3 * never.token_s), (-4, 6), textcoords="offset points",
                   ha="right", fontsize=9)  # fmt: skip
    saved.plot([1e3 * never.wasted_s], [1e3 * never.token_s], "ks", markersize=7)
    # Far to the left drafts hardly draft: their times would flatten everything else.
    saved.set_ylim(None, 1e3 * never.token_s * 1.25)
    saved.set_xlim(0, 1.05e3 * never.wasted_s)
    saved.set(xlabel="wasted draft time per committed token, ms", ylabel="time per committed token, ms")
    times = f"T_p {1e3 * timings.draft_s:g} ms, round trip and check {1e3 * timings.fixed_s:g} ms"
    saved.set_title(f"The same drafts, stopped\n(gamma {gamma}, {times})", fontsize=10)
    saved.grid(alpha=0.3)
    saved.text(0.98, 0.98, "line: all thresholds\ndot: the chosen one", transform=saved.transAxes, ha="right", va="top",
               fontsize=9)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
