"""A cluster on Ray: Ray places, supervises and restarts; frames go from robots to replicas by ZeroMQ, past Ray.

One detached actor is the directory: it keeps the replicas' reports and decides how many run. One detached actor a
replica stands on its machine and supervises the verifier's process. Doors are processes outside: each keeps a copy of
the directory, by which it goes on while the actor is away.

Only this file knows Ray, which is imported late: without it the verifier works, and this command has one sentence.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.door import ClusterDoor
from cloud_verifier.cluster.local import END_S, LOOK_S, TURN_S, bind_host, make_secret, places_of, replica_command
from cloud_verifier.cluster.manager import Manager
from cloud_verifier.cluster.post import open_post
from cloud_verifier.cluster.scaling import Scaler, Scaling
from cloud_verifier.cluster.settings import ClusterSettings
from cloud_verifier.cluster.supervisor import Reported, Supervisor
from cloud_verifier.cluster.tickets import Tickets
from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.monitoring.doors import WatchedDoor
from cloud_verifier.monitoring.serving import pages_served
from speculation.address import bracketed, is_loopback
from speculation.settings import fields_of

_log = logging.getLogger("cloud_verifier")

NAMESPACE, DIRECTORY = "spec-vlm-nav", "directory"
JOINING_S = 2.0
"""How often the directory learns that a replica loads its model."""
VIEW_S, ASK_S = 0.2, 2.0
"""How often a door asks the directory for its view, and how long it waits for an answer."""
STALE_S = 60.0
"""How long a door goes by its last view while the directory is away."""
START_S = 120.0
"""How long the directory's actor may take to start."""


@dataclass(frozen=True)
class Plan:
    """What the directory needs to start replicas on any machine."""

    options: dict[str, Any]
    """Of the command line, by name."""
    scaling: Scaling
    secret: bytes
    bind_host: str
    first_port: int
    cpus: float
    """Of a replica."""
    gpus: float
    """Of a replica."""

    @property
    def local(self) -> bool:
        """Whether replicas are reached on their own machine only."""
        return is_loopback(self.bind_host)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise StartError(
            f"cluster needs Ray ({error}): install spec-vlm-nav-core[cluster], or give --on local"
        ) from None
    return ray


def in_full(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with paths in full: an actor works in another folder than the command line that they are of.

    What does not exist here, as a model that Hugging Face knows by name, stays.
    """
    paths = {field.name for field in fields_of(ServerConfig) if field.kind is Path}
    there = {name: Path(value) for name, value in options.items() if name in paths and value is not None}
    return {**options, **{name: path.absolute() for name, path in there.items() if path.exists()}}


class ReplicaActor:
    """Supervises one verifier process on the machine where Ray has put it, and hands its reports to the directory."""

    def __init__(self, name: str, plan: Plan) -> None:
        ray = _ray()
        self._name, self._directory = name, None
        host = plan.bind_host if plan.local else bracketed(ray.util.get_node_ip_address())
        self._supervisor = Supervisor(plan.secret, host)
        place = int(name.rpartition("-")[2]) - 1
        port = str(plan.first_port + place) if plan.first_port else "*"
        # Ray names the GPUs of this actor in its environment, which the process inherits.
        self._supervisor.start(name, replica_command(plan.options, f"tcp://{plan.bind_host}:{port}", place + 1))
        threading.Thread(target=self._watch, daemon=True).start()

    def drain(self) -> None:
        """Let the verifier send its robots elsewhere and end."""
        self._supervisor.drain(self._name)

    def shed(self, robots: int) -> None:
        """Let the verifier send so many robots elsewhere."""
        self._supervisor.shed(self._name, robots)

    def kill(self) -> None:
        """End a verifier that does not answer."""
        self._supervisor.kill(self._name)

    def process(self) -> int | None:
        """Return the id of the verifier's process on its machine; None where it has ended."""
        return self._supervisor.running.get(self._name)

    def _watch(self) -> None:
        ended: tuple[str, int | None] | None = None
        latest: Status | None = None
        sent_at = 0.0
        while True:
            self._supervisor.reap()
            try:
                event = self._supervisor.events.get(timeout=LOOK_S)
            except queue.Empty:
                event = None
            if isinstance(event, Reported):
                latest, sent_at = event.status, time.monotonic()
                self._send("reported", latest)
            elif event is not None:
                ended = (event.name, event.code)
                self._send("ended", *ended)
            elif ended is not None and ended[1] is not None:  # the directory may have been away
                self._send("ended", *ended)
                time.sleep(1.0)
            elif latest is not None and latest.phase is Phase.JOINING and time.monotonic() - sent_at > JOINING_S:
                # It loads its model and reports nothing: a directory that was started anew would take it to hang.
                sent_at = time.monotonic()
                self._send("reported", latest)

    def _send(self, method: str, *values: Any) -> None:
        """Call the directory, and wait for nothing; what gets lost is in the next report."""
        try:
            if self._directory is None:
                self._directory = _ray().get_actor(DIRECTORY, NAMESPACE)
            getattr(self._directory, method).remote(*values)
        except Exception as error:  # the directory is being started again
            _log.warning("replica %s does not reach the directory: %s", self._name, error)
            self._directory = None


class RayFleet:
    """Replicas as detached actors, see `manager.Fleet`."""

    def __init__(self, plan: Plan) -> None:
        """Those that run already are taken over."""
        ray = _ray()
        self._plan = plan
        self._actors: dict[str, Any] = {}
        for each in ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE and each["name"].startswith("replica-"):
                self._actors[each["name"]] = ray.get_actor(each["name"], NAMESPACE)

    @property
    def names(self) -> Collection[str]:
        """See `manager.Fleet`."""
        return tuple(self._actors)

    def start(self, name: str) -> None:
        """See `manager.Fleet`."""
        actor = _ray().remote(ReplicaActor).options(
            name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=-1, num_cpus=self._plan.cpus,
            num_gpus=self._plan.gpus,
        )  # fmt: skip
        # The name is taken for a moment after an actor was killed; the next turn tries again.
        with contextlib.suppress(ValueError):
            self._actors[name] = actor.remote(name, self._plan)

    def drain(self, name: str) -> None:
        """See `manager.Fleet`."""
        self._actors[name].drain.remote()

    def shed(self, name: str, robots: int) -> None:
        """See `manager.Fleet`."""
        self._actors[name].shed.remote(robots)

    def kill(self, name: str) -> None:
        """See `manager.Fleet`."""
        self._actors[name].kill.remote()

    def ended(self, name: str) -> None:
        """Free what the actor of a process that has ended holds."""
        if name in self._actors:
            _ray().kill(self._actors.pop(name))


class DirectoryActor:
    """The directory and the manager of the cluster. Ray starts it again; it then knows all from the next reports."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._directory, self._fleet = Directory(), RayFleet(plan)
        self._scaler = Scaler(plan.scaling, len(self._fleet.names))
        self._manager = Manager(self._directory, self._scaler, self._fleet, plan.scaling.max)
        self._failure = ""
        self._stopping = False
        threading.Thread(target=self._manage, daemon=True).start()

    def secret(self) -> bytes:
        """Return what tickets are signed with."""
        return self._plan.secret

    def view(self) -> tuple[tuple[Status, ...], str]:
        """Return the replicas as they reported last and, where none can start, why."""
        with self._lock:
            return self._directory.replicas(time.monotonic()), self._failure

    def reported(self, status: Status) -> None:
        """Take in a replica's report."""
        with self._lock:
            self._manager.reported(status, time.monotonic())

    def ended(self, name: str, code: int | None) -> None:
        """A replica's process has ended, or its connection."""
        with self._lock:
            try:
                self._manager.ended(name, code, time.monotonic())
            except StartError as error:
                self._failure, self._stopping = str(error), True
            if code is not None:
                self._fleet.ended(name)

    def drain(self, name: str) -> None:
        """Let a replica send its robots elsewhere and end; another one takes its place."""
        with self._lock:
            self._manager.drain(name)

    def stop(self) -> int:
        """Let all replicas drain and start none any more; return how many are left."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                for name in self._fleet.names:
                    self._manager.drain(name)
            return len(self._fleet.names)

    def _manage(self) -> None:
        while True:
            try:
                with self._lock:
                    if not self._stopping:
                        self._manager.turn(time.monotonic())
            except Exception:  # what Ray raises passes, and replicas must be started after it
                _log.exception("the manager of the replicas failed")
            time.sleep(LOOK_S)


class View:
    """A door's copy of the directory, brought up to date by a thread that asks for it."""

    def __init__(self) -> None:
        self.directory = Directory()
        self._latest: tuple[Status, ...] = ()
        self._latest_at = time.monotonic()
        self.failure = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def turn(self) -> None:
        """Take over what was learned. While the directory is away its last view holds, for STALE_S."""
        now = time.monotonic()
        latest = self._latest
        if now - self._latest_at > STALE_S:
            return
        known = {each.name for each in latest}
        for each in self.directory.replicas(now):
            if each.name not in known:
                self.directory.gone(each.name)
        for each in latest:
            self.directory.report(each, now)

    def close(self) -> None:
        """Ask no more."""
        self._ending.set()
        self._thread.join()

    def _ask(self) -> None:
        ray = _ray()
        actor, away = None, False
        while not self._ending.wait(VIEW_S):
            try:
                if actor is None:
                    actor = ray.get_actor(DIRECTORY, NAMESPACE)
                self._latest, self.failure = ray.get(actor.view.remote(), timeout=ASK_S)
                self._latest_at, away = time.monotonic(), False
            except Exception as error:
                if not away:
                    _log.warning("the directory is away, robots are sent by its last view: %s", error)
                actor, away = None, True


def _start_directory(plan: Plan) -> Any:
    """Return the directory's actor, which is started where there is none yet."""
    return _ray().remote(DirectoryActor).options(
        name=DIRECTORY, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=-1,
        max_task_retries=-1, num_cpus=0, max_concurrency=16,
    ).remote(plan)  # fmt: skip


def serve(options: dict[str, Any], config: ServerConfig, settings: ClusterSettings, scaling: Scaling) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError, in one sentence, if it cannot.

    Where Ray is started here, everything ends with this process; else this is one door, and the others stay.
    """
    ray = _ray()
    stopping: list[int] = []
    # A cluster that is away is waited for, and until then a signal is to end this process at once.
    try:
        # Without an address Ray joins any cluster that it finds on this machine, which then ends with this process.
        ray.init(address=settings.address or "local", namespace=NAMESPACE, include_dashboard=False)
    except Exception as error:
        raise StartError(f"--address {settings.address!r}: Ray cannot be reached or started: {error}") from None
    for signum in (signal.SIGTERM, signal.SIGINT):  # Ray has handlers of its own
        signal.signal(signum, lambda number, _: stopping.append(number))
    try:
        if not settings.stop:
            with contextlib.ExitStack() as ends:
                cluster = ends.enter_context(contextlib.closing(RayCluster(options, config, settings, scaling)))
                ends.enter_context(pages_served(config.monitoring, cluster.watched))
                while not stopping:
                    cluster.turn()
        if settings.stop or not settings.address:
            stop(config.limits.drain_s)
    finally:
        ray.shutdown()


class RayCluster:
    """A door in the Ray cluster that this process has joined; `turn` again and again, then `close`."""

    def __init__(
        self, options: dict[str, Any], config: ServerConfig, settings: ClusterSettings, scaling: Scaling
    ) -> None:
        """`options` are those of the command line, by name. Raises StartError."""
        ray = _ray()
        each = len(config.model.devices)
        places = places_of([int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]], each)
        per_replica = 0.0 if settings.cpus_per_replica or not places else float(each)
        plan = Plan(
            in_full(options), settings.limits(scaling, places), make_secret(settings, config.link),
            bind_host(config.link), settings.replica_port,
            settings.cpus_per_replica or (0.0 if per_replica else 1.0), per_replica,
        )  # fmt: skip
        with contextlib.ExitStack() as ends:
            mailbox = open_post(config.link, config.quotas.bytes_per_s)
            ends.callback(mailbox.close)
            actor = _start_directory(plan)
            try:
                secret = ray.get(actor.secret.remote(), timeout=START_S)  # that of the first door
            except Exception as error:
                raise StartError(f"the cluster's directory does not start: {error}") from None
            self.view = View()
            ends.callback(self.view.close)
            self._mailbox = mailbox
            self.door = ClusterDoor(mailbox, self.view.directory, Tickets(secret))
            self._ends = ends.pop_all()
        self.address = mailbox.address
        self.watched = WatchedDoor(time.monotonic, config.monitoring.hang_s, config.monitoring.http)
        _log.info("cluster of %d to %d replicas, a door at %s", plan.scaling.min, plan.scaling.max, self.address)

    def turn(self) -> None:
        """Answer robots. Raises StartError where no replica can start."""
        self.door.turn(TURN_S)
        self.watched.turn(
            lambda: self.view.directory.replicas(time.monotonic()), self.door.redirected, self.door.turned_away,
            self._mailbox.restarts,
        )  # fmt: skip
        self.view.turn()
        if self.view.failure:
            stop(0.0)  # or the next start would find what has failed
            raise StartError(self.view.failure)

    def close(self) -> None:
        """Close the door; replicas and directory go on. Safe to repeat."""
        self._ends.close()
        _log.info(
            "door closed: %d robots sent to replicas, %d turned away", self.door.redirected, self.door.turned_away
        )


def stop(drain_s: float) -> None:
    """Let all replicas drain, and end the actors, and verifiers that hang, by force after `drain_s` and END_S."""
    ray = _ray()
    try:
        directory = ray.get_actor(DIRECTORY, NAMESPACE)
    except ValueError:
        return
    until, left = time.monotonic() + drain_s + END_S, 1
    while left and time.monotonic() < until:
        time.sleep(LOOK_S)
        with contextlib.suppress(Exception):  # the directory is being started again
            left = ray.get(directory.stop.remote(), timeout=ASK_S)
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE:
            with contextlib.suppress(Exception):  # it ends meanwhile, or its machine is gone
                actor = ray.get_actor(each["name"], NAMESPACE)
                if each["name"] != DIRECTORY:  # its process would outlive it, and a hung one for ever
                    ray.get(actor.kill.remote(), timeout=ASK_S)
                ray.kill(actor)
