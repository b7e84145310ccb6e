"""Figures of runs on virtual time: modes compared at one round trip, and what the papers' formulas give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_drafter import Mode, StepResult
from evaluation import formulas
from evaluation.figures import summary
from evaluation.tables import MS, Column, figures_table
from evaluation.virtual_time.decoding import run_mode
from evaluation.virtual_time.layer_split import LAYER_SPLIT, LayerSplit
from evaluation.virtual_time.recording import Recording
from evaluation.virtual_time.timings import Timings

GAMMAS = tuple(range(1, 13))
"""Draft lengths among which `sd` has its best one, and depths among which `server_sd` has its own."""
FIRST, FINALISTS = 10, 3
"""Answers on which every draft is tried where the best one is searched, and how many are then tried on all of them."""
TREE = 32
"""Tokens of the tree that `server_sd` drafts (SpecEdge, Appendix C)."""
CLOUD, SD, FSD, SERVER_SD = Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value, Mode.SERVER_SD.value


def best_sd(recording: Recording, timings: Timings) -> tuple[int, dict[str, Any]]:
    """Return the draft length with which `sd` is fastest, and its figures; without a predictor's early ends."""
    shapes = [{"gamma": gamma, "stop_below": 0.0} for gamma in GAMMAS]
    best, figures = _fastest(SD, shapes, recording, timings)
    return best["gamma"], figures


def best_server_sd(recording: Recording, timings: Timings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the draft with which `server_sd` is fastest, as changes of its settings, and its figures.

    Searched over depths of 1 to 12, each as a tree of 32 tokens (SpecEdge, Appendix C) and as a chain: where every
    token of a verification costs, the chain is the stronger baseline.
    """
    shapes: list[dict[str, Any]] = [{"gamma": depth, "draft_tokens": size} for size in (TREE, 0) for depth in GAMMAS]
    return _fastest(SERVER_SD, shapes, recording, timings)


def _fastest(
    mode: str, shapes: Sequence[dict[str, Any]], recording: Recording, timings: Timings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the changes of a mode's settings with which its median step is shortest, and the mode's figures with them.

    All are tried on the first answers, the fastest of them on every answer: neighbours differ by less than answers do.
    """

    def tried(some: Recording, among: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        found = [(shape, figures_of(run_mode(mode, some, timings, **shape), timings)) for shape in among]
        return sorted(found, key=lambda each: float(each[1]["total_s"]["median"]))

    if len(recording.steps) > FIRST:
        first = replace(recording, steps=recording.steps[:FIRST])
        shapes = [shape for shape, _ in tried(first, shapes)[:FINALISTS]]
    return tried(recording, shapes)[0]


def sd_at(gamma: int, recording: Recording, timings: Timings) -> dict[str, Any]:
    """Return the figures of `sd` with drafts of exactly `gamma` tokens."""
    return figures_of(run_mode(SD, recording, timings, gamma=gamma, stop_below=0.0), timings)


def figures_of(results: Sequence[StepResult], timings: Timings) -> dict[str, Any]:
    """Return `evaluation.figures.summary` of a mode with hits and misses."""
    stats = [result.stats for result in results]
    return summary(stats) | {
        **{name: sum(getattr(each, name) for each in stats) for name in ("hits", "misses", "rounds")},
        "busy_s_per_s": sum(each.tokens for each in stats) * timings.verify_s / sum(each.total_s for each in stats),
    }


def compare(
    modes: Mapping[str, Mapping[str, Any]], best: tuple[Any, Mapping[str, Any]], gamma_4_tau: float
) -> dict[str, dict[str, Any]]:
    """Return the modes' figures with what compares them: ratios of medians and the useful rate.

    useful: committed tokens x T_q / (time x tau of `sd` at its best gamma). useful_4: with tau at gamma 4 instead.
    """
    bases = {base: modes[base]["total_s"]["median"] for base in (CLOUD, SD) if base in modes}
    return {
        mode: {
            **entry,
            "useful": entry["busy_s_per_s"] / best[1]["tau"],
            "useful_4": entry["busy_s_per_s"] / gamma_4_tau,
            **{f"times_{base}": seconds / entry["total_s"]["median"] for base, seconds in bases.items()},
        }
        for mode, entry in modes.items()
    }


def at_round_trip(
    rtt_s: float | None,
    modes: Sequence[str],
    recording: Recording,
    timings: Timings,
    split: LayerSplit,
    edges: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """Return the figures of all modes at one round trip (None: the timings' own); `changes` as in `run_mode`.

    `server_sd` drafts what is fastest there (`best_server_sd`), whatever is changed. formulas_s: what the papers'
    formulas give per step, with tau and miss rate of the runs.
    """
    timings = timings if rtt_s is None else replace(timings, one_way_s=rtt_s / 2.0)
    here = best_server_sd(recording, timings)[0] if SERVER_SD in modes else {}
    own = {SERVER_SD: here}
    entries = {
        mode: figures_of(run_mode(mode, recording, timings, split, edges, **own.get(mode, changes)), timings)
        for mode in modes
    }
    best, four = best_sd(recording, timings), sd_at(4, recording, timings)
    n = round(sum(len(step.tokens) for step in recording.steps) / len(recording.steps))
    gamma = changes.get("gamma", 4)
    seconds = {CLOUD: formulas.cloud_s(timings, n)}
    if SD in entries and isinstance(gamma, int):
        seconds[SD] = formulas.sd_s(timings, n, gamma, entries[SD]["tau"])
    if FSD in entries and isinstance(gamma, int):
        seconds[FSD] = formulas.fsd_s(timings, n, gamma, entries[FSD]["tau"], entries[FSD]["miss_rate"] or 0.0)
    if LAYER_SPLIT in entries:
        seconds[LAYER_SPLIT] = formulas.layer_split_s(timings, n, split.share, split.slowdown)
    return {
        "rtt_s": 2.0 * timings.one_way_s,
        "sd_best_gamma": best[0],
        "sd_best_tau": best[1]["tau"],
        "sd_gamma_4_tau": four["tau"],
        "server_sd_best": here or None,
        "modes": compare(entries, best, four["tau"]),
        "formulas_s": seconds,
    }


COLUMNS = (
    Column("ms/token min", "per_token_s.min", ".1f", MS),
    Column("median", "per_token_s.median", ".1f", MS),
    Column("max", "per_token_s.max", ".1f", MS),
    Column("x cloud", "times_cloud"),
    Column("x sd", "times_sd"),
    Column("tau", "tau"),
    Column("hits", "hits_per_step", ".1f"),
    Column("misses", "misses_per_step", ".1f"),
    Column("passes/token", "passes_per_token"),
    Column("useful", "useful"),
    Column("at gamma 4", "useful_4"),
    Column("wasted", "wasted_forwards", ".0%"),
    Column("mean exit", "mean_exit", ".1f"),
    Column("B up", "bytes_up_per_step", ".0f"),
    Column("B down", "bytes_down_per_step", ".0f"),
    Column("formula", "formula"),
)


def report(entry: Mapping[str, Any]) -> str:
    """Return a table with a row per mode for one round trip; formula: over the median."""
    rows = {}
    for mode, each in entry["modes"].items():
        seconds = entry["formulas_s"].get(mode)
        rows[mode] = {
            **each,
            **{f"{name}_per_step": each[name] / each["steps"] for name in ("hits", "misses")},
            "formula": None if seconds is None else seconds / each["total_s"]["median"],
        }
    return figures_table("mode", rows, COLUMNS)
