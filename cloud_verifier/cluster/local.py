"""A cluster on this machine, without Ray: replica processes, their manager and the door in one loop."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from cloud_verifier.cluster.directory import Directory
from cloud_verifier.cluster.door import ClusterDoor
from cloud_verifier.cluster.manager import Manager
from cloud_verifier.cluster.post import open_post
from cloud_verifier.cluster.scaling import Scaler, Scaling
from cloud_verifier.cluster.settings import SECRET_FILE, ClusterSettings
from cloud_verifier.cluster.supervisor import Reported, Spawn, Supervisor, spawn
from cloud_verifier.cluster.tickets import SECRET_BYTES, Tickets, load_secret
from cloud_verifier.config import Link, ServerConfig, StartError
from cloud_verifier.monitoring.doors import WatchedDoor, replica_port
from cloud_verifier.monitoring.serving import pages_served
from speculation.address import host_of
from speculation.settings import fields_of

_log = logging.getLogger("cloud_verifier")

TURN_S, LOOK_S = 0.02, 0.1
"""How long the door waits for mail, and how often processes are looked at."""
END_S = 10.0
"""How long a replica may take to end once its robots are gone."""


def replica_command(options: dict[str, Any], bind: str, number: int) -> list[str]:
    """Return the command that starts the `number`th replica, from 1, with the settings of a command line, but for the
    address that it binds and the port of its pages."""
    words = [sys.executable, "-m", "cloud_verifier", "replica"]
    own = {"bind": bind, "http": replica_port(options.get("http"), number)}
    for field in fields_of(ServerConfig):
        value = own.get(field.name, options.get(field.name, field.default))
        value = getattr(value, "value", value)
        if value is None or field.name in ("trace", "log_file"):
            continue
        words += [field.flag, str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def bind_host(link: Link) -> str:
    """Return the host of the address that is bound, which replicas bind too."""
    return host_of(link.bind, any_port=True)


def count_gpus() -> int:
    """Return the GPUs of this machine, without loading anything that knows them."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return len([each for each in shown.split(",") if each.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def places_of(gpus: Sequence[int], each: int) -> int:
    """Return for how many replicas machines with so many GPUs have room, if each has its own on one machine.

    Raises StartError where there are GPUs, but nowhere enough for one.
    """
    found = sum(count // each for count in gpus)
    if any(gpus) and not found:
        raise StartError(
            f"--gpus-per-replica {each}: no machine has so many, the largest has {max(gpus)}; give fewer, and a "
            "smaller --dtype or a --quantisation if the model does not fit them"
        )
    return found


def make_secret(settings: ClusterSettings, link: Link) -> bytes:
    """Return the cluster's secret: from its file or, without keys, a new one. Raises StartError."""
    file = settings.secret_file or (link.keys / SECRET_FILE if link.keys is not None else None)
    if file is None:
        return os.urandom(SECRET_BYTES)
    try:
        return load_secret(file)
    except (ValueError, OSError) as error:
        raise StartError(f"--secret-file {file}: {error}") from None


class LocalFleet:
    """Replicas as processes of this machine, see `manager.Fleet`; the n-th has the n-th GPUs and port."""

    def __init__(
        self,
        supervisor: Supervisor,
        command: Callable[[str, int], Sequence[str]],
        host: str = "127.0.0.1",
        first_port: int = 0,
        gpus: int = 0,
        gpus_each: int = 1,
    ) -> None:
        """command: how the n-th replica is started that binds to an address, from 1; host: of these addresses;
        first_port: 0: any; gpus: of this machine, of which each replica has `gpus_each`."""
        self._supervisor, self._command = supervisor, command
        self._host, self._first_port, self._gpus, self._gpus_each = host, first_port, gpus, gpus_each

    @property
    def names(self) -> Collection[str]:
        """See `manager.Fleet`."""
        return self._supervisor.running

    def start(self, name: str) -> None:
        """See `manager.Fleet`."""
        place = int(name.rpartition("-")[2]) - 1
        environment = dict(os.environ)
        if self._gpus:
            shown = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self._gpus)))).split(",")
            first = place % places_of([len(shown)], self._gpus_each) * self._gpus_each
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(shown[first : first + self._gpus_each])
        port = str(self._first_port + place) if self._first_port else "*"
        self._supervisor.start(name, self._command(f"tcp://{self._host}:{port}", place + 1), environment)

    def drain(self, name: str) -> None:
        """See `manager.Fleet`."""
        self._supervisor.drain(name)

    def shed(self, name: str, robots: int) -> None:
        """See `manager.Fleet`."""
        self._supervisor.shed(name, robots)

    def kill(self, name: str) -> None:
        """See `manager.Fleet`."""
        self._supervisor.kill(name)


class LocalCluster:
    """Door, directory, manager and the processes of this machine; `turn` again and again, then `close`."""

    def __init__(
        self,
        options: dict[str, Any],
        config: ServerConfig,
        settings: ClusterSettings,
        scaling: Scaling,
        start: Spawn = spawn,
    ) -> None:
        """`options` are those of the command line, by name. `start` starts processes. Raises StartError."""
        host, secret, gpus = settings.reached_at(config.link), make_secret(settings, config.link), count_gpus()
        each = len(config.model.devices)
        limits = settings.limits(scaling, places_of([gpus], each))
        self._drain_s = config.limits.drain_s
        self._mailbox = open_post(config.link, config.quotas.bytes_per_s)
        self.supervisor = Supervisor(secret, host, start)
        fleet = LocalFleet(
            self.supervisor,
            partial(replica_command, options),
            bind_host(config.link),
            settings.replica_port,
            gpus,
            each,
        )
        self.directory = Directory()
        self.manager = Manager(self.directory, Scaler(limits), fleet, limits.max)
        self.door = ClusterDoor(self._mailbox, self.directory, Tickets(secret))
        self._looked_at = -LOOK_S
        self.address = self._mailbox.address
        self.watched = WatchedDoor(time.monotonic, config.monitoring.hang_s, config.monitoring.http)
        _log.info("cluster of %d to %d replicas, its door at %s", limits.min, limits.max, self.address)

    @property
    def socket_pid(self) -> int:
        """The process of the socket at which robots arrive."""
        return self._mailbox.pid

    def turn(self) -> None:
        """Answer robots, take reports and look after processes. Raises StartError where no replica can start."""
        self.door.turn(TURN_S)
        self.watched.turn(
            lambda: self.directory.replicas(time.monotonic()), self.door.redirected, self.door.turned_away,
            self._mailbox.restarts,
        )  # fmt: skip
        now = time.monotonic()
        take_events(self.supervisor, self.manager, now)
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.supervisor.reap()
            self.manager.turn(now)

    def close(self) -> None:
        """Close the door, let replicas drain, and end them; safe to repeat."""
        self._mailbox.close()  # first, so that robots that are sent away go on to another door at once
        self.supervisor.close(self._drain_s + END_S)
        _log.info(
            "stopped: %d robots were sent to replicas, %d turned away", self.door.redirected, self.door.turned_away
        )


def serve(options: dict[str, Any], config: ServerConfig, settings: ClusterSettings, scaling: Scaling) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError, in one sentence, if it cannot."""
    stopping: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):  # before replicas are started, which would be left behind
        signal.signal(signum, lambda number, _: stopping.append(number))
    with (
        closing(LocalCluster(options, config, settings, scaling)) as cluster,
        pages_served(config.monitoring, cluster.watched),
    ):
        while not stopping:
            cluster.turn()


def take_events(supervisor: Supervisor, manager: Manager, now: float) -> None:
    """Hand what the supervisor has noticed to the manager. Raises StartError as `Manager.ended`."""
    while True:
        try:
            event = supervisor.events.get_nowait()
        except queue.Empty:
            return
        if isinstance(event, Reported):
            manager.reported(event.status, now)
        else:
            manager.ended(event.name, event.code, now)
