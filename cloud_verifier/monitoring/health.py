"""Answers an operator's questions about one server: is it alive, may it get robots, how loaded is it, what is it?

Any thread may ask; it reads what the server's thread has published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import Figures, Phase, SessionFigures
from cloud_verifier.monitoring.series import SeriesStore
from speculation.wire import PROTOCOL


class Health(ABC):
    """Knows what the pages of `--http` show of a process. It hangs where it gave no sign for `hang_s` seconds."""

    who, remedy = "", ""
    """`who` gives signs; `remedy` says what to do when there are none."""
    more_pages: Mapping[str, Callable[[], Any]] = {}
    """What further pages show as JSON, by their path."""

    def __init__(self, store: SeriesStore, clock: Callable[[], float], hang_s: float) -> None:
        self.store = store
        self._clock, self._hang_s = clock, hang_s
        self.about: dict[str, Any] = {}
        """What `/version` answers."""
        self.describe(version=_program_version(), protocol=PROTOCOL)
        store.child(s.READY).set_function(lambda: float(not self.ready_problem()))
        store.child(s.HEARTBEAT).set_function(self.silent_s)
        store.child(s.SNAPSHOT_AGE).set_function(self.age_s)

    def describe(self, **about: Any) -> None:
        """Add to what `/version` answers, as a model that was loaded."""
        self.about = {**self.about, **about}
        self.store.set_all(s.INFO, {tuple(str(self.about.get(label, "")) for label in s.INFO.labels): 1.0})

    @abstractmethod
    def age_s(self) -> float:
        """Return the age of what was published last."""

    @abstractmethod
    def silent_s(self) -> float:
        """Return the seconds since the process last gave a sign."""

    def health_problem(self) -> str:
        """Return why the process should be restarted; empty: it should not."""
        age = self.silent_s()
        if age <= self._hang_s:
            return ""
        return f"{self.who} gave no sign for {age:.0f} s, more than --hang-s {self._hang_s:g}: {self.remedy}"

    @abstractmethod
    def ready_problem(self) -> str:
        """Return why no robot should be sent here now; empty: it may be."""

    @abstractmethod
    def load(self) -> msgspec.Struct:
        """Return what `/load` answers."""


class Load(msgspec.Struct, frozen=True):
    """A verifier's answer to `/load`, as JSON, for balancers and `top`. Times are seconds, shares are of 1."""

    phase: str
    ready: bool
    problem: str
    """Why `/ready` answers 503; empty: it does not."""
    age_s: float
    """How old is what was published."""
    sessions: int
    session_places: int
    requests_running: int
    requests_waiting: int
    kv_cache_usage: float
    predicted_pass_s: float
    """What a forward takes in which every answered step decodes."""
    engine_busy_s: float
    """How long the models worked since the start; its growth a second is the utilisation."""
    generation_tokens: int
    class_commits: dict[str, int]
    deadline_violations: dict[str, int]
    """How many of `class_commits` came too late, by class."""
    acceptance: dict[str, float]
    """Accepted share of the levels of drafts, by who made them."""
    robots: list[SessionFigures]


class VerifierHealth(Health):
    """Watches one verifier, which may still be loading; while it does it gives no signs, and is alive."""

    who, remedy = "the engine", "a forward hangs; see the log and the GPU, then restart the verifier"

    def __init__(self, figures: Figures, clock: Callable[[], float], hang_s: float) -> None:
        self._figures = figures
        super().__init__(figures, clock, hang_s)

    def age_s(self) -> float:
        return max(0.0, self._clock() - self._figures.latest.at)

    def silent_s(self) -> float:
        is_loading = self._figures.phase is Phase.LOADING
        return 0.0 if is_loading else max(0.0, self._clock() - self._figures.beat)

    def ready_problem(self) -> str:
        """Return why no robot should be sent here now; empty: it may be."""
        phase = self._figures.phase
        if phase is not Phase.SERVING:
            return str(phase.value)
        return self.health_problem() or self._figures.latest.problem

    def load(self) -> Load:
        """Return what `/load` answers."""
        figures, latest, problem = self._figures, self._figures.latest, self.ready_problem()
        drafted, accepted = figures.values(s.DRAFT_LEVELS), figures.values(s.ACCEPTED)
        return Load(
            phase=figures.phase.value,
            ready=not problem,
            problem=problem,
            age_s=self.age_s(),
            sessions=len(latest.sessions),
            session_places=int(figures.value(s.PLACES)),
            requests_running=int(figures.value(s.RUNNING)),
            requests_waiting=int(figures.value(s.WAITING)),
            kv_cache_usage=figures.value(s.KV_CACHE),
            predicted_pass_s=figures.value(s.PREDICTED),
            engine_busy_s=figures.total(s.BUSY_TIME),
            generation_tokens=int(figures.total(s.GENERATION_TOKENS)),
            class_commits={name: int(count) for (name,), count in figures.values(s.COMMITS).items()},
            deadline_violations={name: int(count) for (name,), count in figures.values(s.VIOLATIONS).items()},
            acceptance={source: accepted[source,] / levels for (source,), levels in drafted.items() if levels},
            robots=list(latest.sessions),
        )


def _program_version() -> str:
    try:
        return version("spec-vlm-nav-core")
    except PackageNotFoundError:  # sources that were never installed
        return "unknown"
