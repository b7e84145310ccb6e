"""Figures of a mode on virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_drafter import StepResult
from vlm_nav_evaluation.figures import summary
from vlm_nav_evaluation.virtual_time.timings import Timings


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
