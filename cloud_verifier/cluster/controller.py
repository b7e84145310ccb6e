"""Keeps as many replicas as are wanted, spreads their robots, and ends replicas that hang.

It knows no process and no Ray, only a `Fleet`. Whoever runs the fleet starts again by itself what dies, as Ray does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from cloud_verifier.cluster.directory import Directory, Phase, Status, replica_name
from cloud_verifier.cluster.scaling import Scaler
from cloud_verifier.start_error import StartError

_log = logging.getLogger("cloud_verifier")

HUNG_S = 15.0
"""A replica that has served, or drains, and has been silent for so long is ended."""
AWAY_S = 2.0
"""A controller that has not looked for so long was away itself, and takes nobody's silence meanwhile for a failure."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""The pause before a replica that has failed is started again; until one is ready each is twice the last."""
BALANCE_S = 5.0
"""Replicas with too many robots send some elsewhere so often: after a death all are where there was room."""


class Fleet(Protocol):
    """Runs the replicas, wherever they are. One that dies is started again without the controller."""

    @property
    def names(self) -> Collection[str]:
        """Return those that were started and have not ended for good."""

    def start(self, name: str) -> None: ...

    def drain(self, name: str) -> None:
        """Let one send its robots elsewhere and end."""

    def shed(self, name: str, robots: int) -> None:
        """Let one send so many robots elsewhere."""

    def kill(self, name: str) -> None:
        """End one that hangs; it is started again."""


class Controller:
    """Brings the fleet to what `scaler` wants. `now` is in seconds, the directory's."""

    def __init__(self, directory: Directory, scaler: Scaler, fleet: Fleet, most: int) -> None:
        """`most` replicas have a place, those that drain included."""
        self._directory, self._scaler, self._fleet = directory, scaler, fleet
        self._slots = [replica_name(number) for number in range(1, most + 1)]
        self._leaving: set[str] = set()
        self._reported_at: dict[str, float] = {}
        """When a replica last reported; at first all that run already."""
        self._turned_at: float | None = None
        self._pause_s, self._start_at = 0.0, 0.0
        self._ever_ready = False
        self._balanced_at = 0.0

    def reported(self, status: Status, now: float) -> None:
        """Take in a replica's report."""
        self._directory.report(status, now)
        if status.phase is Phase.JOINING:  # while it loads its model it may be silent
            self._reported_at.pop(status.name, None)
        else:
            self._reported_at[status.name] = now
        if status.phase is Phase.READY:
            self._ever_ready, self._pause_s = True, 0.0

    def died(self, name: str) -> None:
        """Take in that a replica's process has died. The fleet starts it again."""
        self._directory.gone(name)
        self._reported_at.pop(name, None)

    def ended(self, name: str) -> None:
        """Take in that a replica has ended for good, as after a drain. If it is still wanted, another one starts."""
        self.died(name)
        self._leaving.discard(name)
        _log.info("replica %s has ended", name)

    def failed(self, name: str, reason: str, now: float) -> None:
        """Take in that a replica has ended by an error, its reason.

        Raises StartError where none has ever been ready: it is the settings.
        """
        self.died(name)
        self._leaving.discard(name)
        if not self._ever_ready:
            raise StartError(f"replica {name} cannot start: {reason}")
        self._pause_s = min(max(FIRST_PAUSE_S, 2.0 * self._pause_s), LONGEST_PAUSE_S)
        self._start_at = now + self._pause_s
        _log.error("replica %s failed: %s; it is started again in %.0f s", name, reason, self._pause_s)

    def turn(self, now: float) -> None:
        """Start, drain and end what is to be."""
        if self._turned_at is None:
            # Those that another controller has started: one that hangs never reports, and would not be missed.
            self._reported_at = dict.fromkeys(self._fleet.names, now) | self._reported_at
        ready = self._directory.ready(now)
        wanted = self._scaler.wanted(
            len(ready), sum(each.utilisation for each in ready), max((each.late for each in ready), default=0.0), now
        )
        for each in ready:
            if each.name in self._leaving:  # a process that was started since, or it was out of reach
                self.drain(each.name)
        running = [name for name in self._fleet.names if name not in self._leaving]
        free = [name for name in self._slots if name not in self._fleet.names]
        if now >= self._start_at:
            for name in free[: max(0, wanted - len(running))]:
                self._fleet.start(name)
        sessions = {each.name: each.sessions for each in self._directory.replicas(now)}
        for name in sorted(running, key=lambda name: sessions.get(name, 0))[: max(0, len(running) - wanted)]:
            self.drain(name)
        if now - self._balanced_at >= BALANCE_S:
            self._balanced_at = now
            for name, robots in self._directory.surplus(now).items():
                _log.info("replica %s has %d robots too many, which go elsewhere", name, robots)
                self._fleet.shed(name, robots)
        self._end_hung(now)

    def drain(self, name: str) -> None:
        """Let a replica end once its robots are elsewhere; if that leaves too few, another one is started."""
        _log.info("replica %s is to drain", name)
        self._leaving.add(name)
        self._directory.drain(name)
        self._fleet.drain(name)

    def _end_hung(self, now: float) -> None:
        """End those that hang, those that are to drain too: they hold a place that another one needs."""
        away = now - (now if self._turned_at is None else self._turned_at)
        self._turned_at = now
        for name, at in list(self._reported_at.items()):
            if away > AWAY_S:
                self._reported_at[name] = at = min(now, at + away)
            if now - at > HUNG_S and name in self._fleet.names:
                _log.warning("replica %s has not reported for %.0f s and is ended", name, now - at)
                self._reported_at[name] = now
                self._fleet.kill(name)
