"""Manager: keeps as many replicas running as are wanted. It starts nothing itself and knows no process: see `Fleet`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.scaling import Scaler
from cloud_verifier.config import StartError

_log = logging.getLogger("cloud_verifier")

HUNG_S = 15.0
"""A replica that was ready, or drains, and has not reported for so long is ended and started again."""
AWAY_S = 2.0
"""A manager that has not looked for so long was away itself, and takes nobody's silence meanwhile for an end."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a replica that ended without being ready is started again; each further time twice as long."""
BALANCE_S = 5.0
"""How often replicas with too many robots send some elsewhere: after a death all are where there was room."""
CANNOT_START = 2
"""Exit code of a verifier whose settings are wrong."""


class Fleet(Protocol):
    """The replicas' processes, wherever they are."""

    @property
    def names(self) -> Collection[str]:
        """Those that were started and have not ended."""

    def start(self, name: str) -> None: ...

    def drain(self, name: str) -> None:
        """Let one send its robots elsewhere and end."""

    def shed(self, name: str, robots: int) -> None:
        """Let one send so many robots elsewhere."""

    def kill(self, name: str) -> None:
        """End one that does not answer."""


class Manager:
    """Brings the fleet to what `scaler` wants, and what has ended back. `now` is in seconds, the directory's."""

    def __init__(self, directory: Directory, scaler: Scaler, fleet: Fleet, most: int) -> None:
        """most: replicas that there is place for, those that drain included."""
        self._directory, self._scaler, self._fleet = directory, scaler, fleet
        self._slots = [f"replica-{number}" for number in range(1, most + 1)]
        self._leaving: set[str] = set()
        self._reported_at: dict[str, float] = {}
        """When a replica last reported, of those that have been ready; at first all that run already."""
        self._turned_at: float | None = None
        self._pause_s, self._start_at = 0.0, 0.0
        self._ever_ready = False
        self._balanced_at = 0.0

    def reported(self, status: Status, now: float) -> None:
        """Take in a replica's report."""
        self._directory.report(status, now)
        if status.phase is Phase.JOINING:  # perhaps one anew, whose machine is gone with the one before
            self._reported_at.pop(status.name, None)
        elif status.phase is Phase.READY:
            self._reported_at[status.name] = now
            self._ever_ready, self._pause_s = True, 0.0
        elif status.name in self._reported_at:
            self._reported_at[status.name] = now

    def ended(self, name: str, code: int | None, now: float) -> None:
        """A replica's process has ended, with its exit code, or only its connection (None), which its end follows.

        Raises StartError where none has ever been ready and this one cannot start with these settings.
        """
        self._directory.gone(name)
        if code is None:
            return
        if code == CANNOT_START and not self._ever_ready:
            raise StartError(f"replica {name} cannot start; its own line above has the reason")
        was_ready = self._reported_at.pop(name, None) is not None
        if name in self._leaving:
            self._leaving.discard(name)
            _log.info("replica %s has ended, as it was to", name)
            return
        if not was_ready:
            self._pause(now)
        _log.warning("replica %s ended with code %d; it is started again in %.0f s", name, code, self._pause_s)

    def turn(self, now: float) -> None:
        """Start, drain and end what is to be."""
        if self._turned_at is None:
            # Those that another manager has started: one that hangs never reports, and this one would not miss it.
            self._reported_at = dict.fromkeys(self._fleet.names, now) | self._reported_at
        ready = self._directory.ready(now)
        wanted = self._scaler.wanted([each.demand for each in ready], now)
        for each in ready:
            if each.name in self._leaving:  # a process that was started since, or it was out of reach
                self.drain(each.name)
        running = [name for name in self._fleet.names if name not in self._leaving]
        free = [name for name in self._slots if name not in self._fleet.names]
        for name in free[: max(0, wanted - len(running))]:
            if now >= self._start_at:
                self._start(name, now)
        sessions = {each.name: each.sessions for each in self._directory.replicas(now)}
        for name in sorted(running, key=lambda name: sessions.get(name, 0))[: max(0, len(running) - wanted)]:
            self.drain(name)
        if now - self._balanced_at >= BALANCE_S:
            self._balanced_at = now
            for name, robots in self._directory.surplus(now).items():
                _log.info("replica %s has %d robots too many, which go elsewhere", name, robots)
                self._fleet.shed(name, robots)
        self._look(now)

    def drain(self, name: str) -> None:
        """Let a replica end once its robots are elsewhere; if that leaves too few, another one is started."""
        _log.info("replica %s is to drain", name)
        self._leaving.add(name)
        self._directory.drain(name)
        self._fleet.drain(name)

    def _look(self, now: float) -> None:
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

    def _start(self, name: str, now: float) -> None:
        try:
            self._fleet.start(name)
        except OSError as error:  # out of processes or memory, for a while perhaps; the others serve
            self._pause(now)
            _log.error("replica %s cannot be started: %s; trying again in %.0f s", name, error, self._pause_s)

    def _pause(self, now: float) -> None:
        self._pause_s = min(max(FIRST_PAUSE_S, 2.0 * self._pause_s), LONGEST_PAUSE_S)
        self._start_at = now + self._pause_s
