"""Answers the same questions about a cluster's gateway, which has no engine: does it live, how are its replicas?

The gateway's loop calls `turn` again and again; any thread may ask for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cloud_verifier.cluster.directory import Phase, Status, replica_number
from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import PUBLISH_S
from cloud_verifier.monitoring.health import Health
from cloud_verifier.monitoring.series import GATEWAY_CATALOGUE, SeriesStore
from speculation.address import host_of


class GatewayLoad(msgspec.Struct, frozen=True):
    """A gateway's answer to `/load`, as JSON."""

    ready: bool
    problem: str
    age_s: float
    sessions: int
    session_places: int
    redirected: int
    turned_away: int
    replicas: Sequence[Status]


class GatewayHealth(Health):
    """Watches one gateway, whose pages are at port `http`. It hangs where it did not turn for `hang_s` seconds."""

    who, remedy = "the gateway's loop", "see the log, then restart the gateway"

    def __init__(self, clock: Callable[[], float], hang_s: float, http: int | None = None) -> None:
        self._http = http
        self._replicas: Sequence[Status] = ()
        self._at, self._turned_at = -PUBLISH_S, clock()
        super().__init__(SeriesStore(GATEWAY_CATALOGUE), clock, hang_s)
        self.more_pages = {"/targets": self.targets}

    def turn(
        self, replicas: Callable[[], Sequence[Status]], redirected: int, turned_away: int, restarts: int = 0
    ) -> None:
        """Note that the gateway's loop has turned; once a second its figures are published.

        `restarts` are those of its frontend.
        """
        now = self._turned_at = self._clock()
        if now - self._at < PUBLISH_S:
            return
        self._at, self._replicas, store = now, replicas(), self.store
        for phase in Phase:
            store.set(s.REPLICAS, sum(each.phase is phase for each in self._replicas), phase.value)
        store.set(s.SENT_ON, redirected)
        store.set(s.NO_REPLICA, turned_away)
        store.set(s.FRONTEND_RESTARTS, restarts)
        for series, field in (
            (s.REPLICA_SESSIONS, "sessions"), (s.REPLICA_PLACES, "session_places"), (s.REPLICA_MEMORY, "memory"),
            (s.REPLICA_LOAD, "utilisation"), (s.REPLICA_LATE, "late"),
        ):  # fmt: skip
            store.set_all(series, {(each.name,): getattr(each, field) for each in self._replicas})

    def age_s(self) -> float:
        return max(0.0, self._clock() - self._at)

    def silent_s(self) -> float:
        return max(0.0, self._clock() - self._turned_at)

    def ready_problem(self) -> str:
        """Return why no robot should be sent here now; empty: it may be."""
        if problem := self.health_problem():
            return problem
        ready = [each for each in self._replicas if each.phase is Phase.READY]
        if not ready:
            return f"no replica is ready, of {len(self._replicas)}"
        if all(each.sessions >= each.session_places for each in ready):
            return f"full: all {len(ready)} replicas are (--max-sessions, --max)"
        return ""

    def load(self) -> GatewayLoad:
        """Return what `/load` answers."""
        replicas, problem = self._replicas, self.ready_problem()
        return GatewayLoad(
            not problem, problem, self.age_s(), sum(each.sessions for each in replicas),
            sum(each.session_places for each in replicas), int(self.store.value(s.SENT_ON)),
            int(self.store.value(s.NO_REPLICA)), replicas,
        )  # fmt: skip

    def targets(self) -> list[dict[str, list[str]]]:
        """Return where the pages of the replicas are, for Prometheus' HTTP service discovery (`http_sd_configs`)."""
        found = [
            f"{host_of(each.address)}:{replica_port(self._http, replica_number(each.name))}"
            for each in self._replicas
            if self._http and each.address
        ]
        return [{"targets": found}]


def replica_port(http: int | None, number: int) -> int | None:
    """Return the port of the pages of a cluster's `number`th replica, from 1: that many behind the gateway's.

    None where the gateway has none; 0, any free one, where the gateway's is.
    """
    return http + number if http else http
