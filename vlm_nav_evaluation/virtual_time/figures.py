"""Figures of runs on virtual time: modes compared at one round trip, and what the papers' formulas give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_drafter import Mode, StepResult
from vlm_nav_evaluation import formulas
from vlm_nav_evaluation.figures import summary
from vlm_nav_evaluation.tables import MS, Column, markdown
from vlm_nav_evaluation.virtual_time.decoding import run_mode
from vlm_nav_evaluation.virtual_time.layer_split import LAYER_SPLIT, LayerSplit
from vlm_nav_evaluation.virtual_time.recording import Recording
from vlm_nav_evaluation.virtual_time.timings import Timings
from vlm_nav_evaluation.virtual_time.tuning import arms_at_best, split

CLOUD, SD, FSD = Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value


def figures_of(results: Sequence[StepResult], timings: Timings) -> dict[str, Any]:
    """Return `vlm_nav_evaluation.figures.summary` of a mode with hits and misses.

    target_busy: target passes x T_q / time, at most 1; 1 is a step without a bubble, in which the target runs all the
    time, whatever was drafted: a chain, a tree or nothing. Divided by passes a token it is T_q over a token's time.
    """
    stats = [result.stats for result in results]
    passes_s = timings.verify_s * sum(each.cloud_passes for each in stats)
    return summary(stats) | {
        **{name: sum(getattr(each, name) for each in stats) for name in ("hits", "misses", "rounds")},
        "target_busy": passes_s / sum(each.total_s for each in stats),
    }


def compare(modes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the modes' figures with ratios of their medians to those of `cloud` and `sd`, where these are there."""
    bases = {base: modes[base]["total_s"]["median"] for base in (CLOUD, SD) if base in modes}
    return {
        mode: {**entry, **{f"times_{base}": seconds / entry["total_s"]["median"] for base, seconds in bases.items()}}
        for mode, entry in modes.items()
    }


def at_round_trip(
    rtt_s: float | None,
    modes: Sequence[str],
    recording: Recording,
    timings: Timings,
    split_layers: LayerSplit,
    edges: int = 1,
    tuned: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Return the figures of all modes at one round trip (None: the timings' own); `changes` as in `run_mode`.

    tuned: every mode once more at its best there, as `arms_at_best`; the answers that it is tuned on are not reported,
    for no mode. formulas_s: what the papers' formulas give per step, with tau and miss rate of the runs as shipped.
    Raises ValueError where there is one answer alone to tune on and to report.
    """
    timings = timings if rtt_s is None else replace(timings, one_way_s=rtt_s / 2.0)
    first, shown = split(recording) if tuned else (None, recording)
    text = changes.pop("text", "")
    arms, drafting = arms_at_best(modes, first, timings, text, edges=edges, **changes)
    entries = {
        arm.name: figures_of(run_mode(arm.mode, shown, timings, split_layers, **arm.changes), timings) for arm in arms
    }
    n = round(sum(len(step.tokens) for step in shown.steps) / len(shown.steps))
    gamma = changes.get("gamma", 4)
    seconds = {CLOUD: formulas.cloud_s(timings, n)}
    if SD in entries and isinstance(gamma, int):
        seconds[SD] = formulas.sd_s(timings, n, gamma, entries[SD]["tau"])
    if FSD in entries and isinstance(gamma, int):
        seconds[FSD] = formulas.fsd_s(timings, n, gamma, entries[FSD]["tau"], entries[FSD]["miss_rate"] or 0.0)
    if LAYER_SPLIT in entries:
        seconds[LAYER_SPLIT] = formulas.layer_split_s(timings, n, split_layers.share, split_layers.slowdown)
    return {
        "rtt_s": 2.0 * timings.one_way_s,
        "tuned_on": len(first.steps) if first is not None else 0,
        "drafting": drafting,
        "modes": compare(entries),
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
    Column("busy", "target_busy"),
    Column("wasted", "wasted_forwards", ".0%"),
    Column("edge CPU s", "cpu_s_per_step"),
    Column("mean exit", "mean_exit", ".1f"),
    Column("B up", "bytes_up_per_step", ".0f"),
    Column("B down", "bytes_down_per_step", ".0f"),
    Column("formula", "formula"),
)


def report(entry: Mapping[str, Any]) -> str:
    """Return a Markdown table with a row per mode for one round trip; formula: over the median."""
    rows = {}
    for mode, each in entry["modes"].items():
        seconds = entry["formulas_s"].get(mode)
        rows[mode] = {
            **each,
            **{f"{name}_per_step": each[name] / each["steps"] for name in ("hits", "misses")},
            "formula": None if seconds is None else seconds / each["total_s"]["median"],
        }
        if mode in entry["drafting"]:
            rows[mode]["drafting"] = f"`{entry['drafting'][mode] or 'as shipped'}`"
    return markdown("mode", rows, (*COLUMNS, *([Column("drafting", "drafting", "")] if entry["drafting"] else [])))
