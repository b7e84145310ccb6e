"""Batched pre-drafting (Early Exits, Appendix C): one continuation a forward, several side by side, or first collected.

A forward over k continuations takes `draft_leaf` longer for each further one (Table 9). *One*: continuations are
pre-drafted one after another. *At hand*: a forward feeds those that are there, up to k. *Collected*: early tokens wait
until k of a round are there, the trade-off that the appendix names. Drawn facts, virtual time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tqdm import tqdm

from benchmarks.analytic.early_exits import BATCHES
from benchmarks.clocked import Recording, Timings, load_timings
from benchmarks.clocked.figures import figures_of, run_mode
from benchmarks.decoding.common import (
    GO2_FACTS,
    GSM8K_FACTS,
    VIRTUAL,
    add_steps,
    go2,
    interval,
    number,
    save,
    share,
    steps_of,
)
from edge_drafter import Mode
from evaluation.figures import times_faster
from evaluation.plots import add_outputs
from evaluation.tables import table

SIZES = (2, 4, 8)
BRANCHES = 8


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `batched` takes."""
    add_outputs(line)
    add_steps(line, 6, 1, "drawn answers for each device")


def devices() -> dict[str, tuple[Any, Timings]]:
    """Return what is drawn at whose times: the drawn Go2 run, and GSM8K at two clients' times."""
    return {
        "go2": (replace(GO2_FACTS, variety=GSM8K_FACTS.variety), go2()),
        "jetson": (GSM8K_FACTS, load_timings("jetson_vicuna_7b")),
        "rtx": (GSM8K_FACTS, load_timings("rtx_vicuna_7b")),
    }


def run(options: argparse.Namespace) -> None:
    """Print a table for each device, and save what was asked."""
    steps = steps_of(options)
    found = {}
    with tqdm(total=len(devices()) * (1 + 2 * len(SIZES)), unit="run", disable=None) as bar:
        for name, (source, timings) in devices().items():
            found[name] = compared(source.draw(steps), timings, bar.update)
    print(f"{steps} drawn answers for each device, at most {BRANCHES} continuations a verification; {VIRTUAL}")
    printed = ", ".join(f"{size}: {time:g}" for size, time in BATCHES.items())
    print(f"a client's forward by batch, ms (Early Exits, Table 9): {printed}")
    for name, (_, timings) in devices().items():
        first, last = (1e3 * timings.draft_forward_s(size) for size in (1, max(SIZES)))
        print(f"\n{name}: a forward over 1 takes {first:.1f} ms, over {max(SIZES)} {last:.1f} ms")
        print(report(found[name]))
    drawn = {name: {"facts": repr(source), "timings": asdict(timings)} for name, (source, timings) in devices().items()}
    save("batched", options, {"kind": VIRTUAL, "drawn": drawn, "devices": found})


def compared(recording: Recording, timings: Timings, tell: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """Return a row for each way to pre-draft; `faster` compares with one at a time, answer by answer."""
    ways = [("one", 1, 1), *(("at hand", size, 1) for size in SIZES), *(("collected", size, size) for size in SIZES)]
    rows: list[dict[str, Any]] = []
    base: list[Any] = []
    for way, leaves, collect in ways:
        results = run_mode(Mode.FSD.value, recording, timings, leaves=leaves, branches=BRANCHES, collect=collect)
        base = base or [each.stats for each in results]
        figures = figures_of(results, timings)
        rows.append(
            {
                "way": way,
                "size": leaves,
                "ms_per_token": 1e3 * figures["per_token_s"]["median"],
                "faster": times_faster(base, [each.stats for each in results]),
                **{name: figures[name] for name in ("miss_rate", "forwards_per_token")},
            }
        )
        tell()
    return rows


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each way to pre-draft."""
    header = ("pre-drafts", "k", "ms/token", "times faster than one", "misses", "draft forwards/token")
    return table(
        header,
        [
            (
                row["way"],
                str(row["size"]),
                number(row["ms_per_token"], 1),
                interval(row["faster"]),
                share(row["miss_rate"]),
                number(row["forwards_per_token"]),
            )
            for row in rows
        ],
    )
