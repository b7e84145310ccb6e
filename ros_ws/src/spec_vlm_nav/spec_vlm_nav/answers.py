"""How the latest answers were decoded, for `/diagnostics`. No ROS."""

from __future__ import annotations

from collections import deque

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.diagnostics import Level, Status

KEPT = 50
"""Answers that figures are taken over."""


class RecentAnswers:
    """Figures over the last `KEPT` answers."""

    def __init__(self) -> None:
        self._stats: deque[DecodingStats] = deque(maxlen=KEPT)

    def note(self, stats: DecodingStats) -> None:
        """Note how an answer was decoded."""
        self._stats.append(stats)

    def status(self, mode: str) -> Status:
        """Return the line about decoding; `mode` is the configured one."""
        if not self._stats:
            return Status("decoding", Level.OK, "no answer yet", {"mode": mode})
        drafted = sum(stats.drafted for stats in self._stats)
        commits = sum(stats.hits + stats.misses for stats in self._stats)
        exits: dict[int, int] = {}
        for stats in self._stats:
            for layer, hits in stats.early_hits.items():
                exits[layer] = exits.get(layer, 0) + hits
        last = self._stats[-1]
        values: dict[str, str | float | int] = {
            "mode": last.mode or mode,
            "answers": len(self._stats),
            "last answer s": last.total_s,
            "interruptions": sum(stats.interruptions for stats in self._stats),
        }
        if drafted:
            values["acceptance"] = sum(stats.accepted for stats in self._stats) / drafted
        if commits:
            values["miss rate"] = sum(stats.misses for stats in self._stats) / commits
        if exits:
            values["hits by exit layer"] = ", ".join(f"{layer}: {hits}" for layer, hits in sorted(exits.items()))
        return Status("decoding", Level.OK, f"last answer in {last.total_s:.2f} s", values)
