"""How the latest answers were decoded, for `/diagnostics`. No ROS."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edge_drafter import Mode
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.diagnostics import Level, Status

KEPT = 50
"""Answers that figures are taken over."""
GAIN = "times as fast as the cloud alone (estimated)"
ALONE = (Mode.CLOUD.value, Mode.EDGE.value)
"""Modes in which nobody drafts for the target."""


def estimated_gain(stats: Sequence[DecodingStats]) -> float | None:
    """Return how many times as fast answers were as the cloud alone would have been; None where nothing was drafted.

    An estimate: it takes the cloud alone to need the same prefill, one round trip, and one pass a token, each as long
    as the passes that were measured.
    """
    drafted = [each for each in stats if each.cloud_passes and each.total_s > 0.0 and each.mode not in ALONE]
    alone_s = [
        each.server_prefill_s
        + each.tokens * each.server_compute_s / each.cloud_passes
        + max(0.0, each.estimated_rtt_s or 0.0)
        for each in drafted
    ]
    return sum(alone_s) / sum(each.total_s for each in drafted) if drafted else None


class AnswerStats:
    """Figures over the last `KEPT` answers. They may be noted in one thread and asked for in another."""

    def __init__(self) -> None:
        self._stats: deque[DecodingStats] = deque(maxlen=KEPT)

    def note(self, stats: DecodingStats) -> None:
        """Note how an answer was decoded."""
        self._stats.append(stats)

    def status(self, mode: str) -> Status:
        """Return the line about decoding; `mode` is the configured one."""
        # A copy, since answers come in another thread.
        kept = [*self._stats]
        if not kept:
            return Status("decoding", Level.OK, "no answer yet", {"mode": mode})
        drafted = sum(each.drafted for each in kept)
        commits = sum(each.hits + each.misses for each in kept)
        exits: dict[int, int] = {}
        for each in kept:
            for layer, hits in each.early_hits.items():
                exits[layer] = exits.get(layer, 0) + hits
        last = kept[-1]
        values: dict[str, str | float | int] = {
            "mode": last.mode or mode,
            "answers": len(kept),
            "last answer s": last.total_s,
            "interruptions": sum(each.interruptions for each in kept),
        }
        if drafted:
            values["accepted of drafted"] = sum(each.accepted for each in kept) / drafted
        if (gain := estimated_gain(kept)) is not None:
            values[GAIN] = gain
        if commits:
            values["miss rate"] = sum(each.misses for each in kept) / commits
        if exits:
            values["hits by exit layer"] = ", ".join(f"{layer}: {hits}" for layer, hits in sorted(exits.items()))
        return Status("decoding", Level.OK, f"last answer in {last.total_s:.2f} s", values)
