"""Plots of a replay's report: time to action, where the time goes, agreement. Figures in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from edge_drafter.stats import CLOUD_STAGES, EDGE_STAGES
from vlm_nav_evaluation.plots import MODE_COLOURS, heat_map, name_rows, new_figure, plain, stacked_bars
from vlm_nav_evaluation.replay.agreement import KINDS, UNREADABLE

STAGE_NAMES = {
    "prefill_s": "edge: prefill",
    "draft_s": "edge: drafts, no check running",
    "predraft_s": "edge: drafts during a check",
    "wait_s": "edge: waits",
    "server_prefill_s": "verifier: prefill",
    "server_compute_s": "verifier: forwards",
    "server_queue_s": "verifier: queue",
}


def plot_latency(data: Mapping[str, Any]) -> Figure:
    """Return the time to action of every arm: box p25 to p75, whiskers p5 to p95, steps as dots; p50 and p99."""
    arms = data["arms"]
    figure = new_figure(1.4 + 0.75 * len(arms))
    axes = figure.add_subplot()
    longest = 0.0
    for row, arm in enumerate(arms.values()):
        values = 1e3 * np.asarray(arm["times_s"])
        colour = MODE_COLOURS[arm["mode"]]
        axes.boxplot(
            values, positions=[row], orientation="horizontal", widths=0.5, whis=(5, 95), showfliers=False,
            patch_artist=True, boxprops={"facecolor": colour, "alpha": 0.55}, medianprops={"color": "black"},
        )  # fmt: skip
        spots = row + 0.36 * np.random.default_rng(0).uniform(-1, 1, len(values))
        axes.plot(values, spots, ".", color=colour, markersize=3, alpha=0.6)
        found = arm["figures"]["total_percentiles_s"]
        axes.plot([1e3 * found["p99"]], [row], "k|", markersize=16, markeredgewidth=2)
        longest = max(longest, float(values.max()))
        axes.text(1.0, row, f" p50 {1e3 * found['p50']:.0f}\n p99 {1e3 * found['p99']:.0f}", va="center", fontsize=9,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xlim(0, 1.05 * longest)
    name_rows(axes, list(arms))
    plain(axes, "x")
    axes.set_xlabel("time to action, ms (box: p25 to p75, whiskers: p5 to p95, bar: p99, dots: single frames)")
    axes.set_title(f"Time to action, {data['frames']} frames, profile {data['settings']['profile']}")
    return figure


def plot_stages(data: Mapping[str, Any]) -> Figure:
    """Return two stacked bars per arm: the edge's time, which adds up, and the verifier's, which runs beside it."""
    arms = data["arms"]
    figure = new_figure(2.2 + 0.8 * len(arms))
    axes = figure.add_subplot()
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    shades = {
        **dict(zip(EDGE_STAGES, (colours[0], colours[2], colours[3], colours[15]), strict=True)),
        **dict(zip(CLOUD_STAGES, (colours[9], colours[8], colours[13]), strict=True)),
    }
    for stages, offset in ((EDGE_STAGES, -0.19), (CLOUD_STAGES, 0.19)):
        parts = {
            STAGE_NAMES[stage]: (shades[stage], [1e3 * arm["figures"]["stages_s"][stage] for arm in arms.values()])
            for stage in stages
        }
        stacked_bars(axes, np.arange(len(arms)) + offset, parts, 0.34)
    for row, arm in enumerate(arms.values()):
        mean = 1e3 * arm["figures"]["total_percentiles_s"]["mean"]
        axes.plot([mean, mean], [row - 0.4, row + 0.4], "k-", linewidth=2, label="time to action" if row == 0 else None)
        axes.annotate(f"{mean:.0f}", (mean, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.margins(x=0.08)
    name_rows(axes, list(arms))
    plain(axes, "x")
    axes.set_xlabel("ms per step, mean (upper bar: edge; lower bar: verifier, at the same time)")
    axes.set_title("Where the time goes")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def plot_agreement(data: Mapping[str, Any]) -> Figure | None:
    """Return a heat map per different confusion with the oracle, or with the target where there are no labels.

    None where nothing can be compared: no labels and no target, or no answer that names an action.
    """
    against = "oracle" if any(arm["oracle"] for arm in data["arms"].values()) else "target"
    panels: dict[str, list[str]] = {}
    for label, arm in data["arms"].items():
        # Where no answer of either side named an action there is no share to show.
        if arm[against] and arm[against]["kind"] is not None:
            panels.setdefault(str(arm[against]["confusion"]), []).append(label)
    if not panels:
        return None
    labels = list(panels.values())[:4]
    names = [kind.replace(" ", "\n") for kind in KINDS]
    figure = new_figure(4.4, 0.6 + 4.2 * len(labels))
    for column, modes in enumerate(labels):
        entry = data["arms"][modes[0]][against]
        axes = figure.add_subplot(1, len(labels), column + 1)
        counts = np.asarray(entry["confusion"])
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        heat_map(axes, shares, [[str(count or "") for count in row] for row in counts], "Blues", dark=0.5)
        kinds = names[: len(counts)]
        axes.set_xticks(range(len(kinds) + 1), [*kinds, f"{UNREADABLE[:6]}-\n{UNREADABLE[6:]}"], fontsize=8)
        new = column == 0 or len(kinds) != len(data["arms"][labels[0][0]][against]["confusion"])
        axes.set_yticks(range(len(kinds)), kinds if new else [], fontsize=8)
        axes.set_xlabel("answered")
        shown = ", ".join(modes) if len(modes) <= 3 else f"{', '.join(modes[:2])} and {len(modes) - 2} more"
        shown = shown if len(modes) < len(data["arms"]) else "all modes alike"
        rates = f"kind {entry['kind']:.0%}, exact {entry['exact']:.0%}"
        axes.set_title(f"{shown}\n{rates}", fontsize=10)
    figure.axes[0].set_ylabel(f"by the {against}")
    return figure
