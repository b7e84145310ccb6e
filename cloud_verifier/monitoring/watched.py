"""Watched: one server's answers to an operator: is it alive, may it get robots, how loaded is it, what is it.

Any thread may ask; it reads what the server's thread has published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import Figures, Phase, Snapshot
from speculation.wire import PROTOCOL


def program_version() -> str:
    """Return the version of the installed program, `unknown` for sources that were never installed."""
    try:
        return version("spec-vlm-nav-core")
    except PackageNotFoundError:
        return "unknown"


class Watched:
    """One server, or one that is still loading. `hang_s`: seconds without a sign after which the engine hangs."""

    def __init__(self, figures: Figures, clock: Callable[[], float], hang_s: float) -> None:
        self._figures, self._clock, self._hang_s = figures, clock, hang_s
        self.about: Mapping[str, Any] = {"version": program_version(), "protocol": PROTOCOL}
        """What `/version` answers; whoever loads the model adds it by replacing this."""

    @property
    def snapshot(self) -> Snapshot:
        """The latest figures."""
        return self._figures.latest

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the engine last gave a sign; 0 while the models are loaded, which gives none."""
        if self._figures.phase is Phase.LOADING:
            return 0.0
        return max(0.0, self._clock() - self._figures.beat)

    @property
    def snapshot_age_s(self) -> float:
        """Age of the figures, seconds."""
        return max(0.0, self._clock() - self.snapshot.at)

    def health_problem(self) -> str:
        """Return why the process should be restarted; empty: it should not. One that is loading is alive."""
        age = self.heartbeat_age_s
        if age <= self._hang_s:
            return ""
        return (
            f"the engine gave no sign for {age:.0f} s, more than --hang-s {self._hang_s:g}: a forward hangs; see the "
            "log and the GPU, then restart the verifier"
        )

    def ready_problem(self) -> str:
        """Return why no robot should be sent here now; empty: it may be."""
        phase = self._figures.phase
        if phase is not Phase.SERVING:
            return str(phase.value)
        return self.health_problem() or self.snapshot.problem

    def load(self) -> dict[str, Any]:
        """Return what `/load` answers: what a balancer, or `top`, wants to know."""
        shot = self.snapshot
        drafted = {source: shot.value(s.DRAFT_LEVELS, source) for source in ("edge", "hint", "self")}
        return {
            "phase": self._figures.phase.value,
            "ready": not self.ready_problem(),
            "problem": self.ready_problem(),
            "age_s": round(self.snapshot_age_s, 3),
            "sessions": len(shot.sessions),
            "session_places": int(shot.value(s.PLACES)),
            "requests_running": int(shot.value(s.RUNNING)),
            "requests_waiting": int(shot.value(s.WAITING)),
            "kv_cache_usage": round(shot.value(s.KV_CACHE), 4),
            "predicted_pass_s": round(shot.value(s.PREDICTED), 6),
            "engine_busy_s": round(shot.total(s.BUSY_TIME), 3),
            "generation_tokens": int(shot.total(s.GENERATION_TOKENS)),
            "class_commits": {labels[0]: int(n) for labels, n in shot.values.get(s.COMMITS, {}).items()},
            "deadline_violations": {labels[0]: int(n) for labels, n in shot.values.get(s.VIOLATIONS, {}).items()},
            "acceptance": {
                source: round(shot.value(s.ACCEPTED, source) / levels, 4)
                for source, levels in drafted.items()
                if levels
            },
            "robots": msgspec.to_builtins(shot.sessions),
        }
