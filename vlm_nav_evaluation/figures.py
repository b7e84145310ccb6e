"""Figures of decoded steps: rates, percentiles, Table 8 of Early Exits. Pure: results in, numbers out.

Rates are totals over totals. Seconds are spreads over steps. Ratios of times are ratios of medians.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import comb
from statistics import median
from typing import Any

import numpy as np

from edge_drafter import DecodingStats, Mode
from edge_drafter.stats import CLOUD_STAGES, EDGE_STAGES
from vlm_nav_evaluation.tables import MS, Column, figures_table, spread_columns

PERCENTILES = (50, 90, 99)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles p50, p90 and p99, interpolated, and the mean."""
    found = np.percentile(np.asarray(values, dtype=float), PERCENTILES)
    return {
        **{f"p{q}": float(each) for q, each in zip(PERCENTILES, found, strict=True)},
        "mean": float(np.mean(values)),
    }


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (lower end, median, upper end) of the 95 % confidence interval of the median, whatever the distribution.

    The ends are order statistics: half of the distribution lies below the median, so the number of values below it is
    binomial. Fewer than six values have no such interval at 95 %; their minimum and maximum are returned then.
    """
    ranked, count = sorted(values), len(values)
    at_most = accumulate(comb(count, below) / 2.0**count for below in range(count // 2))
    rank = max(1, sum(chance <= 0.025 for chance in at_most))
    return ranked[rank - 1], median(ranked), ranked[count - rank]


def tpot(stats: DecodingStats) -> float | None:
    """Return the seconds per output token after the first: (answer - first token) / (tokens - 1); None for one token.

    A commit may bring several tokens at once; the first of them is still the first token.
    """
    if stats.first_commit_s is None or stats.tokens < 2:
        return None
    return (stats.total_s - stats.first_commit_s) / (stats.tokens - 1)


def mean_exit(early_hits: Mapping[int, int]) -> float | None:
    """Return the mean exit layer behind a hit; None without any.

    Taken over pre-draft hits whose landing an early token had named, each counted with the first exit layer that named
    it; layers count from 0. Hits on the draft's own guess have no exit and do not count.
    """
    hits = sum(early_hits.values())
    return sum(layer * count for layer, count in early_hits.items()) / hits if hits else None


def summary(stats: Sequence[DecodingStats]) -> dict[str, Any]:
    """Return the figures of one mode's steps."""

    def total(name: str) -> float:
        return float(sum(getattr(entry, name) for entry in stats))

    def rate(above: str, below: float) -> float:
        return total(above) / below if below else 0.0

    first = [entry.first_commit_s for entry in stats if entry.first_commit_s is not None]
    later = [value for value in map(tpot, stats) if value is not None]
    early: Counter[int] = Counter()
    for entry in stats:
        early.update(entry.early_hits)
    judged = total("hits") + total("misses")
    forwards, tokens, rounds, passes = map(total, ("draft_forwards", "tokens", "rounds", "cloud_passes"))
    return {
        "steps": len(stats),
        "total_s": spread([entry.total_s for entry in stats]),
        "total_percentiles_s": percentiles([entry.total_s for entry in stats]),
        "first_commit_s": spread(first) if first else None,
        "tpot_s": spread(later) if later else None,
        "per_token_s": spread([entry.per_token_s for entry in stats]),
        "tokens": tokens,
        "tau": rate("tokens", rounds),
        "acceptance": rate("accepted", total("drafted")),
        "accepted_per_round": rate("accepted", rounds),
        "drafted_per_round": rate("drafted", rounds),
        "hit_rate": rate("hits", judged),
        "miss_rate": rate("misses", judged) if judged else None,
        "early_received": total("early_received"),
        "early_hits": dict(sorted(early.items())),
        "mean_exit": mean_exit(early),
        "draft_forward_s": (total("draft_s") + total("predraft_s")) / forwards if forwards else None,
        "verify_s": rate("server_compute_s", passes) if passes else None,
        "passes_per_token": rate("cloud_passes", tokens),
        "forwards_per_token": rate("draft_forwards", tokens),
        "wasted_forwards": rate("wasted_forwards", forwards),
        "wasted_s_per_step": rate("wasted_s", len(stats)),
        "wasted_s_per_token": rate("wasted_s", tokens),
        "cpu_s_per_step": rate("cpu_s", len(stats)),
        "bytes_up_per_step": rate("bytes_up", len(stats)),
        "bytes_down_per_step": rate("bytes_down", len(stats)),
        "interruptions": total("interruptions"),
        "busy": total("busy"),
        "stages_s": {name: rate(name, len(stats)) for name in (*EDGE_STAGES, *CLOUD_STAGES)},
    }


COLUMNS = (
    *spread_columns("total_s"),
    Column("speed-up", "speed_up", ".2fx"),
    Column("TTFT ms", "first_commit_s.median", ".0f", MS),
    Column("ms/token", "per_token_s.median", ".1f", MS),
    Column("tau", "tau"),
    Column("accepted", "acceptance", ".0%"),
    Column("hits", "hit_rate", ".0%"),
    Column("wasted", "wasted_forwards", ".0%"),
    Column("passes/token", "passes_per_token"),
    Column("edge CPU s", "cpu_s_per_step"),
    Column("B up", "bytes_up_per_step", ".0f"),
    Column("B down", "bytes_down_per_step", ".0f"),
)


def with_ratios(figures: Mapping[str, Mapping[str, Any]], base: str = Mode.CLOUD.value) -> dict[str, dict[str, Any]]:
    """Return the figures with speed_up, the ratio of medians to `base`; None where it did not run."""
    medians = {mode: entry["total_s"]["median"] for mode, entry in figures.items()}
    return {
        mode: {**entry, "speed_up": medians[base] / medians[mode] if base in medians else None}
        for mode, entry in figures.items()
    }


def report(figures: Mapping[str, Mapping[str, Any]], base: str = Mode.CLOUD.value) -> str:
    """Return a table with a row per mode, as `with_ratios`."""
    return figures_table("mode", with_ratios(figures, base), COLUMNS)


def table8(modes: Mapping[str, Mapping[str, Any]], gamma: int | None, one_way_s: float | None) -> dict[str, Any]:
    """Return the rows of Early Exits, Table 8, for one round trip; None where the modes for it did not run.

    `modes` maps cloud, sd, fsd to their `summary`; `gamma` is None where the edge chose it. T_p, T_q are measured in sd
    (in fsd where sd did not run), so that drafting and verifying do not compete for one machine.
    """
    sd, fsd, cloud = (modes.get(mode.value) for mode in (Mode.SD, Mode.FSD, Mode.CLOUD))
    timed, judged = sd or fsd or {}, fsd or sd or {}
    draft_s, verify_s = timed.get("draft_forward_s"), timed.get("verify_s")

    def ratio(slow: Mapping[str, Any] | None, fast: Mapping[str, Any] | None) -> float | None:
        return slow["total_s"]["median"] / fast["total_s"]["median"] if slow and fast else None

    return {
        "draft_s": draft_s,
        "gamma_draft_s": gamma * draft_s if gamma is not None and draft_s is not None else None,
        "verify_s": verify_s,
        "c": draft_s / verify_s if draft_s is not None and verify_s else None,
        "one_way_s": one_way_s,
        "tau": judged.get("tau"),
        "miss_rate": fsd["miss_rate"] if fsd else None,
        "mean_exit": fsd["mean_exit"] if fsd else None,
        "ar_to_sd": ratio(cloud, sd),
        "sd_to_fsd": ratio(sd, fsd),
        "ar_to_fsd": ratio(cloud, fsd),
    }
