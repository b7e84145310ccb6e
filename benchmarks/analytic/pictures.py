"""Pictures of the formulas, with the engine's and the papers' figures on them. Figures in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.analytic import dssd, early_exits, picospec
from benchmarks.analytic.engine import Ran
from edge_drafter import Mode
from evaluation.plots import COLOURS, WIDTH
from speculation.acceptance import expected_tokens

CLOUD, SD, FSD, PIPELINED = (mode.value for mode in (Mode.CLOUD, Mode.SD, Mode.FSD, Mode.PIPELINED))
HEAT_GAMMAS = (4, 7, 10)
CONTOURS = (1.1, 1.2, 1.5, 2.0, 5.0)
"""Of Fig. 6."""
FORMULA, ENGINE, PAPER = "#4c78a8", "#e45756", "#333333"


def draw_gain(ours: Mapping[int, Ran]) -> Figure:
    """Return Fig. 6 of Early Exits: Eq. 9 over c and r, the paper's systems, and `ours` by gamma at the Go2's c."""
    figure = Figure(figsize=(WIDTH, 4.1), layout="constrained")
    panels: Any = figure.subplots(1, len(HEAT_GAMMAS), sharey=True)
    c, miss = np.linspace(0.0, 1.0, 200), np.linspace(0.0, 1.0, 200)
    for axes, gamma in zip(panels, HEAT_GAMMAS, strict=True):
        gain = np.array([[early_exits.fsd_gain(gamma, x, y) for x in c] for y in miss])
        heat = axes.contourf(c, miss, gain, levels=np.geomspace(1.0, 11.0, 25), cmap="Blues", norm=LogNorm(1.0, 11.0))
        lines = axes.contour(c, miss, gain, levels=CONTOURS, colors="#123a66", linewidths=1.0)
        places = {level: early_exits.miss_for(level, gamma, 0.86) for level in CONTOURS}
        shown = [(0.86, place) for place in places.values() if 0.0 < place < 1.0]
        axes.clabel(lines, fmt=lambda level: f"{level:g}x", fontsize=8, manual=shown)
        axes.set_ylim(0.0, 1.04)
        axes.axvline(early_exits.LARGER_C, color="#eeca3b", linewidth=2)
        for name, system in early_exits.SYSTEMS.items():
            shape = "*" if name == "go2" else "o" if name.startswith("jetson") else "s"
            axes.plot(system.draft_s / system.verify_s, early_exits.MEASURED[name].miss, shape, color="#54a24b",
                      markeredgecolor="black", markersize=12 if shape == "*" else 7)  # fmt: skip
        go2 = early_exits.SYSTEMS["go2"]
        axes.plot(go2.draft_s / go2.verify_s, ours[gamma].miss, "*", color=ENGINE, markeredgecolor="black",
                  markersize=12)  # fmt: skip
        axes.set_title(f"gamma {gamma}", fontsize=11)
        axes.set_xlabel("c = T_p / T_q")
    panels[0].set_ylabel("cache miss rate r")
    bar = figure.colorbar(heat, ax=panels, pad=0.01, aspect=30)
    bar.set_ticks([1, 1.5, 2, 5, 10])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))

    def dot(shape: str, colour: str, label: str, size: float = 7.0) -> Line2D:
        return Line2D([], [], marker=shape, linestyle="", color=colour, markeredgecolor="black", markersize=size,
                      label=label)  # fmt: skip

    figure.legend(
        handles=[
            dot("o", "#54a24b", "Jetson (paper, gamma 4)"), dot("s", "#54a24b", "RTX"),
            dot("*", "#54a24b", "Go2", 12), dot("*", ENGINE, "Go2, our fsd at this gamma", 12),
            Line2D([], [], color="#eeca3b", linewidth=2, label="65B (paper's estimate)"),
        ],
        loc="outside lower center", ncols=5, fontsize=9, handletextpad=0.3, columnspacing=1.2,
    )  # fmt: skip
    figure.suptitle("Early Exits, Eq. 9: SD to FSD, times faster. Longer drafts promise more, and are ready less often",
                    fontsize=12)  # fmt: skip
    return figure


def draw_papers(ran: Mapping[str, Mapping[str, Ran]]) -> Figure:
    """Return speed-ups of Early Exits' systems three times: by Table 4, on the engine, as printed."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    names = list(early_exits.SYSTEMS)
    gamma, n = early_exits.GAMMA, early_exits.TOKENS
    for axes, title in zip(panels, ("cloud decoding to SD", "SD to FSD"), strict=True):
        first = axes is panels[0]
        for row, name in enumerate(names):
            system, measured, found = early_exits.SYSTEMS[name], early_exits.MEASURED[name], ran[name]
            sd = early_exits.sd_s(system, n, gamma, measured.tau)
            fsd = early_exits.fsd_s(system, n, gamma, measured.tau, measured.miss)
            formula = early_exits.cloud_s(system, n) / sd if first else sd / fsd
            slow, fast = (found[mode].token_s for mode in ((CLOUD, SD) if first else (SD, FSD)))
            printed = measured.ar_to_sd if first else measured.sd_to_fsd
            axes.plot([formula, slow / fast, printed], [row] * 3, "-", color="#cccccc", zorder=1)
            for value, shape, colour, size in (
                (formula, "|", FORMULA, 18), (slow / fast, "o", ENGINE, 8), (printed, "D", PAPER, 7)
            ):  # fmt: skip
                axes.plot(value, row, shape, color=colour, markersize=size, markeredgewidth=3 if shape == "|" else 0)
        axes.axvline(1.0, color="#888888", linestyle=":", zorder=0)
        axes.set_title(f"{title}, times faster", fontsize=11)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), [early_exits.SYSTEMS[name].label for name in names], fontsize=9)
    panels[0].invert_yaxis()
    handles = [
        Line2D([], [], marker=shape, linestyle="", color=colour, markersize=9, markeredgewidth=3 if shape == "|" else 0,
               label=label)
        for shape, colour, label in (
            ("|", FORMULA, "paper's formula, Table 4"), ("o", ENGINE, "clocked engine"), ("D", PAPER, "paper, measured")
        )
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(
        "Early Exits: the engine keeps to the formula where drafts can be ready; the printed figures differ",
        fontsize=12,
    )
    return figure


def draw_round_trips(
    ran: Mapping[str, Sequence[Ran]], rtts_s: Sequence[float], acceptance: float, miss: float
) -> Figure:
    """Return milliseconds per token over the round trip at the Go2's times: formulas as lines, the engine as dots."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.add_subplot()
    fine = np.linspace(min(rtts_s), max(rtts_s), 100)
    for mode, label in (
        (CLOUD, "cloud (Early Exits, Table 4)"), (SD, "sd (Table 4)"), (FSD, "fsd (Table 4)"),
        (PIPELINED, "pipelined (PicoSpec, Eq. 9)"),
    ):  # fmt: skip
        lines = [1e3 * token_s(mode, float(rtt_s), acceptance, miss) for rtt_s in fine]
        axes.plot(1e3 * fine, lines, color=COLOURS[mode], linewidth=2, label=label)
        dots = [1e3 * each.token_s for each in ran[mode]]
        axes.plot([1e3 * each for each in rtts_s], dots, "o", color=COLOURS[mode], markeredgecolor="black")
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="clocked engine")
    axes.set_ylim(0.0)
    axes.grid(alpha=0.3)
    axes.set_xlabel("round trip, ms")
    axes.set_ylabel("ms per token")
    axes.set_title("The Go2's times: formulas (lines) and the clocked engine (dots)")
    axes.legend(fontsize=9, ncols=2, loc="lower right")
    return figure


def token_s(mode: str, rtt_s: float, acceptance: float, miss: float, tokens: int = early_exits.TOKENS) -> float:
    """Return what the papers' formulas give for a token at the Go2's times and another round trip, seconds."""
    go2, gamma = early_exits.SYSTEMS["go2"], early_exits.GAMMA
    times = early_exits.System(go2.name, go2.label, go2.gamma_draft_ms, go2.verify_ms, 5e2 * rtt_s, go2.c, go2.threads,
                               go2.layers)  # fmt: skip
    tau = expected_tokens(acceptance, gamma)
    if mode == CLOUD:
        return early_exits.cloud_s(times, tokens) / tokens
    if mode == SD:
        return early_exits.sd_s(times, tokens, gamma, tau) / tokens
    if mode == FSD:
        return early_exits.fsd_s(times, tokens, gamma, tau, miss) / tokens
    if mode == PIPELINED:
        return 1.0 / picospec.pipelined_rate(acceptance, gamma, gamma * times.draft_s, rtt_s, times.verify_s)
    raise ValueError(f"no paper has a formula for mode {mode!r}")


def draw_bandwidth(lines: Mapping[str, Sequence[float]], dots: Mapping[str, Sequence[float]],
                   rates_bps: Sequence[float], link: dssd.Link, told: str) -> Figure:  # fmt: skip
    """Return a round's communication over the link's rate: formulas as lines, the engine's link as dots."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    axes = figure.add_subplot()
    colours = ("#e45756", "#f58518", "#72b7b2", "#4c78a8")
    megabits = [rate / 1e6 for rate in rates_bps]
    for colour, (name, values) in zip(colours, lines.items(), strict=True):
        axes.plot(megabits, [1e3 * each for each in values], color=colour, linewidth=2, label=name)
        axes.plot(megabits, [1e3 * each for each in dots[name]], "o", color=colour, markeredgecolor="black",
                  markersize=5)  # fmt: skip
    axes.axhline(1e3 * link.ntt_s, color="#888888", linestyle=":", label=f"NTT, {1e3 * link.ntt_s:g} ms")
    axes.plot([], [], "o", color="white", markeredgecolor="black", markersize=5, label="the engine's link")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.grid(alpha=0.3)
    axes.set_xlabel("link, Mbit/s each way")
    axes.set_ylabel("communication of a round, ms (mean)")
    axes.set_title("What sampling over a link costs: tokens alone leave nothing but the round trip")
    axes.legend(fontsize=9)
    figure.supxlabel(told, fontsize=8, color="#555555")
    return figure
