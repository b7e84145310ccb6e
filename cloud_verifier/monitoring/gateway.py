"""The same pages for a cluster's gateway, which has no engine: its replicas as they report, and whether it lives.

The gateway's loop calls `turn` again and again; any thread may ask for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cloud_verifier.cluster.directory import Phase, Status
from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.figures import PUBLISH_S, Histogram, Labels
from cloud_verifier.monitoring.health import program_version
from speculation.wire import PROTOCOL


class ReplicaFigures(msgspec.Struct, frozen=True):
    """One replica of a gateway's `/load`. Shares of 1."""

    name: str
    phase: str
    address: str
    sessions: int
    session_places: int
    memory: float
    utilisation: float
    late: float


class GatewayLoad(msgspec.Struct, frozen=True):
    """What a gateway's `/load` answers as JSON."""

    ready: bool
    problem: str
    age_s: float
    sessions: int
    session_places: int
    redirected: int
    turned_away: int
    replicas: Sequence[ReplicaFigures]


class _Published(msgspec.Struct, frozen=True):
    at: float
    replicas: tuple[ReplicaFigures, ...] = ()
    redirected: int = 0
    turned_away: int = 0
    restarts: int = 0


class WatchedGateway:
    """One gateway, its pages at port `http`. `clock` gives seconds; it hangs where it did not turn for `hang_s`."""

    catalogue = s.GATEWAY_CATALOGUE

    def __init__(self, clock: Callable[[], float], hang_s: float, http: int | None = None) -> None:
        self._clock, self._hang_s, self._http = clock, hang_s, http
        self.more: Mapping[str, Callable[[], Any]] = {"/targets": self.targets}
        self.about: Mapping[str, Any] = {"version": program_version(), "protocol": PROTOCOL}
        self._latest = _Published(-PUBLISH_S)
        self._beat = clock()

    def turn(
        self, replicas: Callable[[], Sequence[Status]], redirected: int, turned_away: int, restarts: int = 0
    ) -> None:
        """The gateway's loop has turned; once a second its figures are published.

        `restarts`: of its socket's own process.
        """
        now = self._beat = self._clock()
        if now - self._latest.at >= PUBLISH_S:
            found = tuple(
                ReplicaFigures(
                    each.name, each.phase.value, each.address, each.sessions, each.max_sessions, each.memory,
                    each.utilisation, each.late,
                )
                for each in replicas()
            )  # fmt: skip
            self._latest = _Published(now, found, redirected, turned_away, restarts)

    def health_problem(self) -> str:
        """Return why the process should be restarted; empty: it should not."""
        age = self._clock() - self._beat
        return f"the gateway's loop has not turned for {age:.0f} s, more than --hang-s" if age > self._hang_s else ""

    def ready_problem(self) -> str:
        """Return why no robot should be sent here now; empty: it may be."""
        if problem := self.health_problem():
            return problem
        ready = [each for each in self._latest.replicas if each.phase == Phase.READY]
        if not ready:
            return f"no replica is ready, of {len(self._latest.replicas)}"
        if all(each.sessions >= each.session_places for each in ready):
            return f"full: all {len(ready)} replicas are (--max-sessions, --max)"
        return ""

    def values(self) -> Mapping[s.Series, Mapping[Labels, float]]:
        """Return counters and gauges, by the values of their labels."""
        latest = self._latest

        def each(value: Callable[[ReplicaFigures], float]) -> dict[Labels, float]:
            return {(replica.name,): value(replica) for replica in latest.replicas}

        return {
            s.READY: {(): float(not self.ready_problem())},
            s.REPLICAS: {
                (phase.value,): float(sum(replica.phase == phase for replica in latest.replicas)) for phase in Phase
            },
            s.REPLICA_SESSIONS: each(lambda replica: replica.sessions),
            s.REPLICA_PLACES: each(lambda replica: replica.session_places),
            s.REPLICA_MEMORY: each(lambda replica: replica.memory),
            s.REPLICA_LOAD: each(lambda replica: replica.utilisation),
            s.REPLICA_LATE: each(lambda replica: replica.late),
            s.SENT_ON: {(): latest.redirected},
            s.NO_REPLICA: {(): latest.turned_away},
            s.FRONTEND_RESTARTS: {(): latest.restarts},
            s.HEARTBEAT: {(): max(0.0, self._clock() - self._beat)},
            s.SNAPSHOT_AGE: {(): max(0.0, self._clock() - latest.at)},
        }

    def histograms(self) -> Mapping[s.Series, Mapping[Labels, Histogram]]:
        """A gateway has none."""
        return {}

    def load(self) -> GatewayLoad:
        """Return what `/load` answers."""
        latest, problem = self._latest, self.ready_problem()
        return GatewayLoad(
            not problem, problem, max(0.0, self._clock() - latest.at),
            sum(each.sessions for each in latest.replicas), sum(each.session_places for each in latest.replicas),
            latest.redirected, latest.turned_away, latest.replicas,
        )  # fmt: skip

    def targets(self) -> list[dict[str, list[str]]]:
        """Return where the pages of the replicas are, for Prometheus' HTTP service discovery (`http_sd_configs`)."""
        found = [
            f"{each.address.removeprefix('tcp://').rpartition(':')[0]}:{replica_port(self._http, _number(each))}"
            for each in self._latest.replicas
            if self._http and each.address
        ]
        return [{"targets": found}]


def _number(replica: ReplicaFigures) -> int:
    """Return the number in a replica's name, see `cluster.controller`."""
    return int(replica.name.rpartition("-")[2])


def replica_port(http: int | None, number: int) -> int | None:
    """Return the port of the pages of a cluster's `number`th replica, from 1: that many behind the gateway's.

    None where the gateway has none; 0, any free one, where the gateway's is.
    """
    return http + number if http else http
