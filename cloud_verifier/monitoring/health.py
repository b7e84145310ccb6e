"""Answers an operator's questions about one server: is it alive, may it get robots, how loaded is it, what is it?

Any thread may ask; it reads what the server's thread has published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import SOURCES, Figures, Histogram, Labels, Phase, SessionFigures, Snapshot
from speculation.wire import PROTOCOL


def program_version() -> str:
    """Return the version of the installed program, `unknown` for sources that were never installed."""
    try:
        return version("spec-vlm-nav-core")
    except PackageNotFoundError:
        return "unknown"


class Load(msgspec.Struct, frozen=True):
    """What `/load` answers as JSON: what a balancer, or `top`, wants to know. Seconds, tokens, shares of 1."""

    phase: str
    ready: bool
    problem: str
    """Why `/ready` answers 503; empty: it does not."""
    age_s: float
    """Of these figures."""
    sessions: int
    session_places: int
    requests_running: int
    requests_waiting: int
    kv_cache_usage: float
    predicted_pass_s: float
    """Of a forward in which every answered step decodes."""
    engine_busy_s: float
    """Since the start; its growth by the time between two looks is the utilisation."""
    generation_tokens: int
    class_commits: dict[str, int]
    deadline_violations: dict[str, int]
    """Of `class_commits`, by class."""
    acceptance: dict[str, float]
    """Accepted share of the levels of drafts, by who made them."""
    robots: list[SessionFigures]
    """One a session."""


class Watched:
    """One verifier, or one that is still loading. `hang_s`: seconds without a sign after which the engine hangs."""

    catalogue = s.CATALOGUE
    more: Mapping[str, Callable[[], Any]] = {}

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

    def values(self) -> Mapping[s.Series, Mapping[Labels, float]]:
        """Return counters and gauges, by the values of their labels."""
        return {
            **self.snapshot.values,
            s.READY: {(): float(not self.ready_problem())},
            s.HEARTBEAT: {(): self.heartbeat_age_s},
            s.SNAPSHOT_AGE: {(): self.snapshot_age_s},
        }

    def histograms(self) -> Mapping[s.Series, Mapping[Labels, Histogram]]:
        """Return the histograms, by the values of their labels."""
        return self.snapshot.histograms

    def load(self) -> Load:
        """Return what `/load` answers."""
        shot = self.snapshot
        drafted = {source: shot.value(s.DRAFT_LEVELS, source) for source in SOURCES.values()}
        problem = self.ready_problem()
        return Load(
            phase=self._figures.phase.value,
            ready=not problem,
            problem=problem,
            age_s=self.snapshot_age_s,
            sessions=len(shot.sessions),
            session_places=int(shot.value(s.PLACES)),
            requests_running=int(shot.value(s.RUNNING)),
            requests_waiting=int(shot.value(s.WAITING)),
            kv_cache_usage=shot.value(s.KV_CACHE),
            predicted_pass_s=shot.value(s.PREDICTED),
            engine_busy_s=shot.total(s.BUSY_TIME),
            generation_tokens=int(shot.total(s.GENERATION_TOKENS)),
            class_commits={labels[0]: int(count) for labels, count in shot.values.get(s.COMMITS, {}).items()},
            deadline_violations={labels[0]: int(count) for labels, count in shot.values.get(s.VIOLATIONS, {}).items()},
            acceptance={
                source: shot.value(s.ACCEPTED, source) / levels for source, levels in drafted.items() if levels
            },
            robots=list(shot.sessions),
        )
