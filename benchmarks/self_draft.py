"""A draft model beside the target: mode `full` with it and without it, against `server_sd` at its best depth.

    python -m benchmarks.self_draft --save

On virtual time: synthetic answers at the Go2's and at SpecEdge's times, over several round trips and edges, and with
--recording those of a pair of models, too. `server_sd` drafts a tree of 32 (SpecEdge, Appendix C); its best depth of 1
to 12 is searched on the very answers that are compared, over trees only: chains, which may be faster where a draft
token costs much, are not tried. A setting's ratio is the median over --seeds of the seconds of all answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from edge_drafter import Mode
from speculation.progress import progress
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.plots import COLOURS, add_outputs, bar_plot, keep
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import SERVER, Recording, Synthetic, Timings, load_timings
from vlm_nav_evaluation.virtual_time.decoding import run_mode
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST
from vlm_nav_evaluation.virtual_time.tuning import GAMMAS, TREE

BESIDE = SERVER.changed(draft_model=Path("beside"))
"""A verifier with a draft model."""
SERVER_DRAFT_S = 0.011
"""T_p of the draft model beside the target (SpecEdge, Sec. 5.2)."""
GO2 = replace(load_timings("go2_a100"), server_draft_s=SERVER_DRAFT_S)
SPECEDGE = Timings(
    "specedge", SERVER_DRAFT_S, verify_s=0.0942, one_way_s=0.007035, server_draft_s=SERVER_DRAFT_S
).with_cost(DEFAULT_COST)
"""T_q of its 32B model and its round trip of 14.07 ms."""
ROUND_TRIPS_S = (0.0, 0.04, 0.4)
SLOWER = 5.0
"""Times that a draft forward of a slow edge takes of one beside the target."""
SYNTHETIC = Synthetic(tokens=100, second=0.4, sharpness=0.7)
GOOD = 0.9
"""Acceptance of a good edge's drafts."""

COLUMNS = (
    Column("depth", "depth", ".0f"),
    Column("server_sd ms/token", "server_sd", ".1f", MS),
    Column("full without", "without", ".1f", MS),
    Column("full with", "with", ".1f", MS),
    Column("x server_sd", "times_server_sd", ".3f"),
    Column("x full without", "times_without", ".3f"),
)


class Setting(NamedTuple):
    """What is compared. `edge` has the answers of `beside`, the draft model's on the verifier, with its own drafts."""

    name: str
    timings: Timings
    beside: Recording
    edge: Recording


def useless(recording: Recording) -> Recording:
    """Return the same answers with drafts that are wrong at every place."""
    wrong = ((step.draft_tokens + 1) % recording.vocabulary for step in recording.steps)
    steps = (replace(step, draft_tokens=tokens) for step, tokens in zip(recording.steps, wrong, strict=True))
    return replace(recording, steps=tuple(steps))


def recorded_settings(recording: Recording) -> Iterator[Setting]:
    """Yield the settings of a pair of models that was recorded: its own draft on both sides, or a useless edge."""
    yield Setting("recorded, Go2, 240 ms", GO2, recording, recording)
    yield Setting("recorded, Go2, 240 ms, useless edge", GO2, recording, useless(recording))
    yield Setting("recorded, SpecEdge", SPECEDGE, recording, recording)
    yield Setting("recorded, SpecEdge, slow edge", slow(SPECEDGE), recording, recording)
    yield Setting("recorded, SpecEdge, useless edge", SPECEDGE, recording, useless(recording))


def synthetic_settings(steps: int, seed: int, round_trips_s: Sequence[float] = ROUND_TRIPS_S) -> Iterator[Setting]:
    """Yield settings on synthetic answers: an edge as good as the verifier's draft model, better, slower or useless."""
    like = replace(SYNTHETIC, seed=seed)
    own, good = (each.draw(steps) for each in (like, replace(like, acceptance=GOOD)))
    if [step.tokens for step in own.steps] != [step.tokens for step in good.steps]:
        raise RuntimeError("a better draft has other answers")
    for times in (GO2, SPECEDGE):
        for round_trip_s in round_trips_s:
            timings = replace(times, draft_s=SERVER_DRAFT_S, one_way_s=round_trip_s / 2.0)
            name = f"synthetic, {'Go2' if times is GO2 else 'SpecEdge'}, {1e3 * round_trip_s:g} ms"
            yield Setting(f"{name}, equal edge", timings, own, own)
            yield Setting(f"{name}, slow edge", slow(timings), own, own)
            yield Setting(f"{name}, good edge", timings, own, good)
            yield Setting(f"{name}, useless edge", timings, own, useless(own))


def slow(timings: Timings) -> Timings:
    """Return timings with an edge that drafts slowly."""
    return replace(timings, draft_s=SLOWER * SERVER_DRAFT_S)


def seconds(mode: Mode, recording: Recording, timings: Timings, **changes: Any) -> float:
    """Return the seconds of all answers; `changes` as in `run_mode`."""
    return sum(each.stats.total_s for each in run_mode(mode.value, recording, timings, **changes))


def best_depth(setting: Setting, depths: Sequence[int] = GAMMAS) -> tuple[float, int]:
    """Return the seconds of `server_sd` at its best depth, and that depth.

    The search goes up and ends where two depths in a row were slower than the one before.
    """
    found: list[tuple[float, int]] = []
    for depth in depths:
        taken = seconds(Mode.SERVER_SD, setting.beside, setting.timings, gamma=depth, draft_tokens=TREE)
        found.append((taken, depth))
        if len(found) > 2 and found[-1][0] > found[-2][0] > found[-3][0]:
            break
    return min(found)


def compared(setting: Setting, search: Callable[[Setting], tuple[float, int]] = best_depth) -> dict[str, float]:
    """Return the figures of a setting, seconds a token."""
    best_s, depth = search(setting)
    with_s = seconds(Mode.FULL, setting.edge, setting.timings, server=BESIDE, beside=setting.beside)
    without_s = seconds(Mode.FULL, setting.edge, setting.timings)
    tokens = sum(len(step.tokens) for step in setting.beside.steps)
    return {
        "depth": depth, "server_sd": best_s / tokens, "without": without_s / tokens, "with": with_s / tokens,
        "times_server_sd": best_s / with_s, "times_without": without_s / with_s,
    }  # fmt: skip


def survey(settings: Sequence[Setting]) -> dict[str, dict[str, float]]:
    """Return the figures of all settings by name: medians over those that share one."""
    same: dict[tuple[int, Timings], tuple[float, int]] = {}

    def search(setting: Setting) -> tuple[float, int]:
        # An edge that drafts nothing has no speed.
        key = id(setting.beside), replace(setting.timings, draft_s=0.0)
        if key not in same:
            same[key] = best_depth(setting)
        return same[key]

    runs: dict[str, list[dict[str, float]]] = {}
    for setting in progress(settings, unit="setting", leave=False):
        runs.setdefault(setting.name, []).append(compared(setting, search))
    return {name: {key: median(run[key] for run in found) for key in found[0]} for name, found in runs.items()}


def plot(rows: Mapping[str, Mapping[str, float]], times: str) -> Figure:
    """Return two bars a setting: how many times as fast `full` with the draft model is as what it is compared with."""
    title = "full with a draft model beside the target"
    figure, axes = bar_plot(1.8 + 0.3 * len(rows), list(rows), title, f"times as fast ({times})")
    for shift, key, mode, label in (
        (-0.19, "times_server_sd", Mode.SERVER_SD, "as server_sd, a tree at its best depth"),
        (0.19, "times_without", Mode.FULL, "as full without the draft model"),
    ):
        places = [place + shift for place in range(len(rows))]
        axes.barh(places, [row[key] for row in rows.values()], 0.36, color=COLOURS[mode.value], label=label)
    axes.axvline(1.0, color="#333333", linewidth=0.8)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.self_draft", __doc__)
    line.add_argument(
        "--recording", type=Path, help="file of `python -m benchmarks.virtual_time record`: its answers as well"
    )
    line.add_argument("--steps", type=int, default=8, help="synthetic answers of 100 tokens (default: 8)")
    line.add_argument("--seeds", type=int, default=1, help="sets of synthetic answers (default: 1)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print the table of settings, and save it where asked. Raises ValueError where nothing is to be compared."""
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds}: give at least 1")
    steps, round_trips = (2, ROUND_TRIPS_S[1:2]) if options.quick else (options.steps, ROUND_TRIPS_S)
    settings: list[Setting] = []
    if options.recording is not None:
        recording = Recording.load(options.recording)
        if options.quick:
            recording = replace(recording, steps=recording.steps[:steps])
        settings += recorded_settings(recording)
    for seed in range(options.seeds):
        settings += synthetic_settings(steps, seed, round_trips)
    rows = survey(settings)
    times = f"{GO2.name}, {SPECEDGE.name}"
    print(f"times: {times}")
    print(figures_table("setting", rows, COLUMNS))
    for title, key in (("server_sd at its best depth", "times_server_sd"), ("full without it", "times_without")):
        ratios = [row[key] for row in rows.values()]
        print(f"full with the draft model against {title}: median {median(ratios):.3f}, worst {min(ratios):.3f}")
    keep(plot(rows, times), "self_draft", options)
    if options.save:
        write_result("self_draft", {"settings": settings_of(options), "figures": rows})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
