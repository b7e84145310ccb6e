"""Plots of a fleet's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from speculation.service_classes import SERVICE_CLASSES
from vlm_nav_evaluation.fleet.specedge import AS_MEASURED, SERVER
from vlm_nav_evaluation.plots import COLOURS, HATCHES, MARKERS, PAPER, SMALL, new_figure, plain

SYSTEMS = ("central", "full_budget", "wisp", "fcfs", "sled", "fcfs, ahead")
"""In the order of their colours, markers and hatches."""
SPECEDGE = ("ours", "ours, exits", "specedge", "oracle")


def wisp_plot(data: Mapping[str, Any]) -> Figure:
    """Return capacity by class, and violations and goodput by the number of robots."""
    figure = new_figure(10.0)
    above, left, right = figure.subplot_mosaic("AA\nLR").values()
    classes = list(next(iter(data["capacity"].values())))
    width = 0.8 / len(data["capacity"])
    for place, (system, by_class) in enumerate(data["capacity"].items()):
        at = np.arange(len(classes)) + (place - (len(data["capacity"]) - 1) / 2) * width
        values, look = [by_class[name]["robots"][-1] for name in classes], SYSTEMS.index(system)
        above.bar(at, values, width, color=COLOURS[look], hatch=HATCHES[look], edgecolor="white", label=system)
    names = [f"{SERVICE_CLASSES[name].tokens_per_s:g} tokens/s" for name in classes]
    above.set_xticks(range(len(classes)), names)
    above.set_ylabel("robots with at most 5 % too slow")
    above.margins(y=0.3)
    above.legend(ncols=3, fontsize=SMALL)
    for system, runs in data["load"].items():
        robots = [int(each) for each in runs]
        look = SYSTEMS.index(system)
        style: dict[str, Any] = {"color": COLOURS[look], "marker": MARKERS[look]}
        left.plot(robots, [100 * each["violations"] for each in runs.values()], **style)
        right.plot(robots, [each["goodput"] for each in runs.values()], **style, label=system)
    right.legend(fontsize=SMALL)
    left.set(xlabel="robots, mixed classes", ylabel="requests too slow, %")
    right.set(xlabel="robots, mixed classes", ylabel="committed tokens/s")
    return figure


def specedge_plot(data: Mapping[str, Any]) -> Figure:
    """Return tokens/s against latency for every batch by pair, with candidates as printed and as measured.

    Below, what each system reaches over `server_sd` at batch 1 by model, under the ceiling.
    """
    figure = new_figure(10.0)
    pairs = list(data["rows"])
    every = figure.subplots(2, len(pairs), squeeze=False, height_ratios=(3, 2))
    for place, pair in enumerate(pairs):
        above, below = every[:, place]
        by_model = data["rows"][pair]
        for model, style in (("stretches", "-"), (AS_MEASURED, "--")):
            batches = by_model[model]["batches"].values() if model in by_model else ()
            for look, name in enumerate((SERVER, *SPECEDGE)):
                rows = [next(iter(each.values())) if name == SERVER else each[name] for each in batches]
                if rows:
                    slow = [1e3 * row["itl_s"] for row in rows]
                    fast = [row["tokens_per_s"]["median"] for row in rows]
                    label = name if style == "-" else None
                    above.plot(slow, fast, MARKERS[look] + style, color=COLOURS[look], label=label)
        above.set(
            xlabel="ms a token", ylabel="tokens/s of the server", yscale="log",
            title=f"{pair}, batch 1 to {list(next(iter(by_model.values()))['batches'])[-1]}",
        )  # fmt: skip
        plain(above, "both")
        firsts = [next(iter(each["batches"].values())) for each in by_model.values()]
        at = np.arange(len(by_model))
        for look, name in enumerate(SPECEDGE, start=1):
            values = [rows[name]["times"] for rows in firsts]
            below.bar(at + 0.2 * (look - 2.5), values, 0.18, label=name, color=COLOURS[look], hatch=HATCHES[look],
                      edgecolor="white")  # fmt: skip
        bases = [next(iter(rows.values()))["tokens_per_s"]["median"] for rows in firsts]
        most = [each["ceiling"] / base for each, base in zip(by_model.values(), bases, strict=True)]
        below.plot(at, most, "_", color=PAPER, markersize=28, label="ceiling")
        below.set(ylabel="times server_sd, batch 1")
        below.set_xticks(at, [name.replace(", ", ",\n").replace(" ", "\n") for name in by_model], fontsize=SMALL)
        below.margins(y=0.45)
        plain(below)
    lines, names = every[0, 0].get_legend_handles_labels()
    title = "above: candidates brought to the paper (stretches), dashed: embedded pair as measured"
    figure.legend(lines, names, loc="outside upper center", ncols=3, fontsize=SMALL, title=title, title_fontsize=SMALL)
    every[1, 0].legend(fontsize=SMALL, ncols=2)
    return figure
