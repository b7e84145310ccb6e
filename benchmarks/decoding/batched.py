"""Batched pre-drafting (Early Exits, Appendix C): one continuation a forward, several side by side, or first collected.

A forward over k continuations takes `draft_leaf` longer for each further one (Table 9). *One*: continuations are
pre-drafted one after another. *At hand*: a forward feeds those that are there, up to k. *Collected*: early tokens wait
until k of a round are there, the trade-off that the appendix names. Synthetic answers, virtual time.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import Any

from benchmarks.decoding.common import GO2_SYNTHETIC, GSM8K_SYNTHETIC, VIRTUAL, arm_figures, declared, go2, save
from edge_drafter import Mode
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST

STEPS = (6, 1, "synthetic answers for each device")
SIZES = (2, 4, 8)
BRANCHES = 8
COLUMNS = (
    Column("ms/token", "ms_per_token", ".1f"),
    Column("times faster than one", "faster"),
    Column("misses", "miss_rate", ".0%"),
    Column("draft forwards/token", "forwards_per_token"),
)


def devices(cost: str = DEFAULT_COST) -> dict[str, tuple[Synthetic, Timings]]:
    """Return answers and times: the Go2's run, and GSM8K at two clients' times."""
    return {
        "go2": (replace(GO2_SYNTHETIC, variety=GSM8K_SYNTHETIC.variety), go2(cost)),
        "jetson": (GSM8K_SYNTHETIC, declared("jetson_vicuna_7b", cost)),
        "rtx": (GSM8K_SYNTHETIC, declared("rtx_vicuna_7b", cost)),
    }


def run(options: argparse.Namespace) -> None:
    """Print a table for each device, and save what was asked."""
    print(
        f"{options.steps} synthetic answers for each device, at most {BRANCHES} continuations a verification; {VIRTUAL}"
    )
    found, inputs = {}, {}
    for name, (synthetic, timings) in devices(options.cost).items():
        rows = compared(synthetic.draw(options.steps), timings)
        first, last = (1e3 * timings.draft_forward_s(size) for size in (1, max(SIZES)))
        print(f"\n{name}: a forward over 1 takes {first:.1f} ms, over {max(SIZES)} {last:.1f} ms; {timings.load_words}")
        print(figures_table("pre-drafts", {f"{row['way']}, {row['size']}": row for row in rows}, COLUMNS))
        found[name], inputs[name] = rows, {"synthetic": repr(synthetic), "timings": asdict(timings)}
    save("batched", options, {"kind": VIRTUAL, "inputs": inputs, "devices": found})


def compared(recording: Recording, timings: Timings) -> list[dict[str, Any]]:
    """Return a row for each way to pre-draft; `faster` compares with one at a time, answer by answer."""
    ways = [("one", 1, 1), *(("at hand", size, 1) for size in SIZES), *(("collected", size, size) for size in SIZES)]
    arms = [
        Arm[Any](f"{way} {size}", Mode.FSD.value, {"leaves": size, "branches": BRANCHES, "collect": collect})
        for way, size, collect in ways
    ]
    run = VirtualTime(recording, timings).run(arms)
    rows = arm_figures(run, timings, "miss_rate", "forwards_per_token")
    return [
        {"way": way, "size": size, "faster": run.times_faster("one 1", arm), **row}
        for (way, size, _), (arm, row) in zip(ways, rows.items(), strict=True)
    ]
