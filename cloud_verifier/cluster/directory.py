"""Knows which replicas there are, by their reports, and where the next robot goes. Time is given.

A robot belongs to a replica by rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads: one that comes back
is sent where its keys and values are; a replica that comes or goes moves few others; and none gets more than BOUND
times its share (Mirrokni et al., arXiv 1608.01350).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

import msgspec

_log = logging.getLogger("cloud_verifier")

REPORT_S = 0.25
"""A replica reports so often."""
SILENT_S = 1.5
"""A replica that has not reported for so long is gone."""
SETTLED_S = 1.0
"""A robot that was sent to a replica counts there for so long; after that the replica's report has it."""
FULL_MEMORY = 0.9
"""A replica whose memory is held to this share gets robots only where all are so full."""
PREFIX_CHOICES = 2
"""A robot goes to the first of so many replicas that serves robots with its prompt's beginning."""
MOST_PREFIXES = 256
"""So many prompts' beginnings are remembered of a replica."""
BOUND = 1.25
"""A replica takes at most so many times its share."""


def preferred(key: str, names: Iterable[str]) -> list[str]:
    """Return the replicas in the order in which a robot of this key belongs to them."""
    return sorted(names, key=lambda name: hashlib.blake2b(f"{name} {key}".encode(), digest_size=8).digest())


def limits(robots: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return how many of so many robots each replica takes at most, by its weight, which is above 0."""
    whole = sum(weights.values())
    return {name: math.ceil(BOUND * robots * weight / whole) for name, weight in weights.items()}


def with_room(key: str, loads: Mapping[str, int], weights: Mapping[str, float]) -> list[str]:
    """Return the replicas that may take one robot more than their loads, the one that it belongs to first.

    There is always one, if there is a replica.
    """
    most = limits(1 + sum(loads.values()), weights)
    return [name for name in preferred(key, loads) if loads[name] < most[name]]


class Phase(str, Enum):
    """A phase is what a replica is doing. Robots are sent to one that is READY."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"


class Status(msgspec.Struct, frozen=True):
    """A status is what a replica reports of itself."""

    name: str
    phase: Phase
    born: float
    """When its process began, seconds since 1970: a replica that was started again has another one."""
    address: str = ""
    """Where robots reach it; empty while it is joining."""
    server_key: str = ""
    """Its public key (z85); it is empty where the replica takes plain text."""
    sessions: int = 0
    session_places: int = 0
    memory: float = 0.0
    """Share of its blocks that steps hold."""
    utilisation: float = 0.0
    """Predicted seconds of passes a second that its robots' classes ask for; above 1 it cannot keep them."""
    late: float = 0.0
    """Share of its answers of late that were slower than their class."""


def replica_name(number: int) -> str:
    """Return the name of a cluster's `number`th replica, from 1."""
    return f"replica-{number}"


def replica_number(name: str) -> int:
    """Return the number in a replica's name."""
    return int(name.rpartition("-")[2])


@dataclass
class _Replica:
    status: Status
    reported_at: float
    sent: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """When robots were sent to it that its reports may not have yet, by their keys: each counts once."""
    prefixes: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


class Directory:
    """Keeps the replicas by name. `now` is in seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._draining: dict[str, float] = {}
        """When those began, by name, that are to get no more robots, whatever they report."""

    # --- what becomes known

    def report(self, status: Status, now: float) -> None:
        """Take in what a replica reports; a first report lets it join."""
        replica = self._replicas.get(status.name)
        if replica is not None and status.born < replica.status.born:
            return  # of a process that another one has replaced
        if replica is None or status.born > replica.status.born:
            replica = self._replicas[status.name] = _Replica(status, now)
        elif replica.status.phase is Phase.DRAINING and status.phase is not Phase.DRAINING:
            return  # reports are not always in order, and nobody comes back from draining
        before, replica.status, replica.reported_at = replica.status, status, now
        if before.phase is not status.phase:
            _log.info("replica %s is %s (%d robots)", status.name, status.phase.value, status.sessions)

    def drain(self, name: str) -> None:
        """Send no more robots to a replica."""
        if name in self._replicas:
            self._draining[name] = self._replicas[name].status.born

    def gone(self, name: str) -> None:
        """Forget a replica that is known to have ended."""
        replica = self._replicas.pop(name, None)
        if replica is not None and replica.status.phase is not Phase.JOINING:
            _log.info("replica %s is gone", name)

    # --- what follows

    def replicas(self, now: float) -> tuple[Status, ...]:
        """Return the latest reports of the replicas that are there, by name. One that is to drain is draining."""
        for name in [name for name, each in self._replicas.items() if now - each.reported_at > SILENT_S]:
            if self._replicas.pop(name).status.phase is not Phase.JOINING:  # which loads its model
                _log.warning("replica %s is silent for %.1f s: robots go elsewhere", name, SILENT_S)
        latest = [each.status for _, each in sorted(self._replicas.items())]
        return tuple(
            msgspec.structs.replace(each, phase=Phase.DRAINING) if self._draining.get(each.name) == each.born else each
            for each in latest
        )

    def ready(self, now: float) -> tuple[Status, ...]:
        """Return those of the replicas that take robots."""
        return tuple(each for each in self.replicas(now) if each.phase is Phase.READY)

    def choose(self, key: str, now: float, prefix: bytes = b"", before: str = "", avoided: str = "") -> Status | None:
        """Return the replica for the robot of this key; None where none is there or all are full.

        One that is `avoided`, by name, is taken only where no other has room. The robot stays where it was `before`, by
        name, if there is room; else it goes where it belongs. A replica's share is smaller where more
        work is asked of it than it can do; one without memory, or without a free session, is passed over; and of the
        first PREFIX_CHOICES that have room one that serves robots of the same `prefix` is taken, whose keys and values
        can be shared.
        """
        loads = {each: self._load(each, now) - (each.name == before) for each in self.ready(now)}
        free = {each: load for each, load in loads.items() if load < each.session_places}
        free = {each: load for each, load in free.items() if each.name != avoided} or free
        free = {each: load for each, load in free.items() if each.memory < FULL_MEMORY} or free
        weights = {each.name: each.session_places / max(1.0, each.utilisation) for each in free}
        by_name = {each.name: each for each in free}
        names = with_room(key, {each.name: max(0, load) for each, load in free.items()}, weights)
        found = [by_name[name] for name in names]
        if not found:
            return None
        stay = (each for each in found if each.name == before)
        alike = (each for each in found[:PREFIX_CHOICES] if prefix and prefix in self._replicas[each.name].prefixes)
        chosen = next(chain(stay, alike, found))
        self._send(chosen.name, key, prefix, now)
        return chosen

    def surplus(self, now: float) -> dict[str, int]:
        """Return how many robots too many are on replicas that have more than their share, as after a death.

        Shares are by sessions alone: robots that were moved for what is asked of a replica would come back.
        """
        ready = {each.name: each for each in self.ready(now)}
        weights = {name: float(each.session_places) for name, each in ready.items()}
        most = limits(sum(each.sessions for each in ready.values()), weights)
        return {name: each.sessions - most[name] for name, each in ready.items() if each.sessions > most[name]}

    def _load(self, status: Status, now: float) -> int:
        sent = self._replicas[status.name].sent
        while sent and now - next(iter(sent.values())) > SETTLED_S:
            sent.popitem(last=False)
        return status.sessions + len(sent)

    def _send(self, name: str, key: str, prefix: bytes, now: float) -> None:
        replica = self._replicas[name]
        replica.sent[key] = now
        replica.sent.move_to_end(key)
        if prefix:
            replica.prefixes[prefix] = None
            replica.prefixes.move_to_end(prefix)
            if len(replica.prefixes) > MOST_PREFIXES:
                replica.prefixes.popitem(last=False)
