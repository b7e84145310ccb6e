"""Runs a cluster on Ray: Ray places, supervises and restarts; frames go from robots to replicas by ZeroMQ, past Ray.

Each replica is a detached actor whose process is the verifier. One detached actor is the directory: it asks the
replicas how they stand and decides how many run. Gateways are processes outside: each keeps a copy of the directory, by
which it goes on while the actor is away.

Only this file knows Ray, which is imported late: without it the verifier works, and this command has one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cloud_verifier.cluster.controller import Controller
from cloud_verifier.cluster.directory import Directory, Status, replica_number
from cloud_verifier.cluster.gateway import Gateway
from cloud_verifier.cluster.member import Member
from cloud_verifier.cluster.scaling import Scaler, Scaling
from cloud_verifier.cluster.settings import ClusterSettings, places_of
from cloud_verifier.cluster.tickets import Tickets
from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.frontend.supervisor import Frontend
from cloud_verifier.logs import start_logging
from cloud_verifier.monitoring.gateway_health import GatewayHealth, replica_port
from cloud_verifier.monitoring.http_server import pages_served
from cloud_verifier.openai_api.process import chat_api_served
from cloud_verifier.serving import serve_model
from speculation.address import bracketed, host_of

_log = logging.getLogger("cloud_verifier")

NAMESPACE, DIRECTORY = "spec-vlm-nav", "directory"
TURN_S, LOOK_S = 0.02, 0.1
"""A gateway waits so long for mail, and the directory looks at its replicas so often."""
VIEW_S, ASK_S = 0.2, 2.0
"""A gateway asks the directory so often for its view, and waits so long for an answer."""
STALE_S = 60.0
"""A gateway goes by its last view for so long while the directory is away."""
START_S = 120.0
"""How long the directory's actor may take to start."""
STORE_BYTES = 80 << 20
"""Ray's object store takes about the least that Ray allows: nothing is kept there."""
END_S = 10.0
"""How long a replica may take to end once its robots are gone."""
CALLS = 8
"""How many calls a replica answers at once: the directory waits in one for its report."""


@dataclass(frozen=True)
class Plan:
    """A plan has what the directory needs to start replicas on any machine."""

    config: ServerConfig
    """The cluster's, with paths in full."""
    scaling: Scaling
    secret: bytes
    first_port: int
    cpus_per_replica: float
    gpus_per_replica: float


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise StartError(f"cluster needs Ray ({error}): install spec-vlm-nav-core[cluster]") from None
    return ray


def replica_config(plan: Plan, number: int) -> ServerConfig:
    """Return the settings of the `number`th replica, from 1: the cluster's, but for its address, pages and files.

    The chat API is the gateway's, which sends requests on as it does robots.
    """
    host = host_of(plan.config.link.bind, any_port=True)
    port = str(plan.first_port + number - 1) if plan.first_port else "*"
    return plan.config.changed(
        bind=f"tcp://{host}:{port}", http=replica_port(plan.config.monitoring.http, number), trace=None,
        log_file=None, api_keys=None,
    )  # fmt: skip


class ReplicaActor(Member):
    """Runs one verifier, in the process and on the machine where Ray has put it."""

    def __init__(self, name: str, plan: Plan) -> None:
        start_logging(None, plan.config.monitoring.log_format, name)
        host = bracketed(_ray().util.get_node_ip_address())
        config = replica_config(plan, replica_number(name))
        super().__init__(name, host, plan.secret, config.limits.max_sessions)
        self._is_over = False
        self._failure: Exception | None = None
        signal.signal(signal.SIGTERM, lambda *_: self.drain())
        threading.Thread(target=self._serve, args=(config,), daemon=True).start()
        _log.info("replica %s starts as process %d", name, os.getpid())

    def status(self) -> Status | None:
        """Return the next report, see `next_status`. Ends the actor once its server has ended.

        Raises what the server has failed with.
        """
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            _ray().actor.exit_actor()
        return self.next_status()

    def drain(self) -> bool:
        """Let the verifier send its robots elsewhere and end; one that still loads its model ends at once."""
        is_served = super().drain()
        self._is_over = self._is_over or not is_served
        return is_served

    def _serve(self, config: ServerConfig) -> None:
        try:
            serve_model(config, self)
        except (StartError, ValueError, OSError) as error:
            self._failure = StartError(str(error))
        except Exception as error:
            _log.exception("the verifier failed")
            self._failure = RuntimeError(f"{type(error).__name__}: {error}")
        self._is_over = True


class RayFleet:
    """Runs replicas as detached actors."""

    def __init__(self, plan: Plan) -> None:
        """Take over those that run already."""
        ray = _ray()
        self._plan = plan
        self.actors: dict[str, Any] = {}
        for each in ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE and each["name"].startswith("replica-"):
                self.actors[each["name"]] = ray.get_actor(each["name"], NAMESPACE)

    @property
    def names(self) -> Collection[str]:
        return tuple(self.actors)

    def start(self, name: str) -> None:
        actor = _ray().remote(ReplicaActor).options(
            name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=-1, num_cpus=self._plan.cpus_per_replica,
            num_gpus=self._plan.gpus_per_replica, max_concurrency=CALLS,
        )  # fmt: skip
        # The name is taken for a moment after an actor has ended; the next turn tries again.
        with contextlib.suppress(ValueError):
            self.actors[name] = actor.remote(name, self._plan)

    def drain(self, name: str) -> None:
        self.actors[name].drain.remote()

    def shed(self, name: str, robots: int) -> None:
        self.actors[name].shed.remote(robots)

    def kill(self, name: str) -> None:
        _ray().kill(self.actors[name], no_restart=False)

    def remove(self, name: str) -> None:
        """End a replica for good, and free what its actor holds."""
        _ray().kill(self.actors.pop(name))


class DirectoryActor:
    """Runs the directory and the controller of the cluster. Ray starts it again; it then asks the replicas anew.

    All of it runs in one event loop.
    """

    def __init__(self, plan: Plan) -> None:
        start_logging(None, plan.config.monitoring.log_format, DIRECTORY)
        _log.setLevel(logging.WARNING)  # gateways log what becomes of the replicas
        self._plan = plan
        self._directory, self._fleet = Directory(), RayFleet(plan)
        scaler = Scaler(plan.scaling, len(self._fleet.names))
        self._controller = Controller(self._directory, scaler, self._fleet, plan.scaling.max)
        self._failure = ""
        self._stopping = False
        self._following: dict[str, asyncio.Task[None]] = {}
        self._task = asyncio.get_running_loop().create_task(self._manage())

    async def secret(self) -> bytes:
        """Return what tickets are signed with."""
        return self._plan.secret

    async def view(self) -> tuple[tuple[Status, ...], str]:
        """Return the replicas as they reported last and, where none can start, why."""
        return self._directory.replicas(time.monotonic()), self._failure

    async def drain(self, name: str) -> None:
        """Let a replica send its robots elsewhere and end; another one takes its place."""
        self._controller.drain(name)

    async def stop(self) -> int:
        """Let all replicas drain and start none any more; return how many are left."""
        self._stopping = True
        for name in self._fleet.names:  # again each time: one that died meanwhile was started again
            self._controller.drain(name)
        return len(self._fleet.names)

    async def _manage(self) -> None:
        while True:
            try:
                if not self._stopping:
                    self._controller.turn(time.monotonic())
            except Exception:  # what Ray raises passes, and replicas must be started after it
                _log.exception("the controller of the replicas failed")
            for name in self._fleet.names:
                if name not in self._following or self._following[name].done():
                    self._following[name] = asyncio.create_task(self._follow(name))
            await asyncio.sleep(LOOK_S)

    async def _follow(self, name: str) -> None:
        """Take in how a replica stands until it has ended for good."""
        errors = _ray().exceptions
        actor = self._fleet.actors[name]
        while True:
            try:
                status = await actor.status.remote()
            except errors.ActorDiedError as error:
                self._fleet.actors.pop(name, None)
                if error.actor_init_failed:
                    self._failed(name, str(error).strip().splitlines()[-1])
                else:
                    self._controller.ended(name)
                return
            except errors.RayTaskError as error:
                self._fleet.remove(name)
                self._failed(name, str(error.cause))
                return
            except errors.RayError:  # its process or machine has died: Ray starts it again
                self._controller.died(name)
                await asyncio.sleep(LOOK_S)
            else:
                if status is not None:
                    self._controller.reported(status, time.monotonic())

    def _failed(self, name: str, reason: str) -> None:
        try:
            self._controller.failed(name, reason, time.monotonic())
        except StartError as error:
            self._failure, self._stopping = str(error), True


class View:
    """Keeps a gateway's copy of the directory, which a thread brings up to date."""

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


def serve(config: ServerConfig, settings: ClusterSettings, scaling: Scaling) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError, in one sentence, if it cannot.

    Where Ray is started here, everything ends with this process; else this is one gateway, and the others stay.
    """
    # Else workers come behind all else on a machine, log lines that are alike are left out, and usage is sent to Ray,
    # which reads some of these when it is imported.
    for name in ("RAY_worker_niceness", "RAY_DEDUP_LOGS", "RAY_COLOR_PREFIX", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    ray = _ray()
    stopping: list[int] = []
    # A cluster that is away is waited for, and until then a signal is to end this process at once.
    try:
        # Without an address Ray joins any cluster that it finds on this machine, which then ends with this process.
        ray.init(
            address=settings.address or "local", namespace=NAMESPACE, include_dashboard=False,
            logging_level=logging.ERROR, object_store_memory=None if settings.address else STORE_BYTES,
        )  # fmt: skip
    except Exception as error:
        what = f"--address {settings.address}: Ray cannot be reached" if settings.address else "Ray cannot be started"
        raise StartError(f"{what}: {error}") from None
    for signum in (signal.SIGTERM, signal.SIGINT):  # Ray has handlers of its own
        signal.signal(signum, lambda number, _: stopping.append(number))
    try:
        if not settings.stop:
            with contextlib.ExitStack() as ends:
                cluster = ends.enter_context(contextlib.closing(RayCluster(config, settings, scaling)))
                pages = ends.enter_context(
                    pages_served(config.monitoring, cluster.health, config.chat_api.api_keys is not None)
                )
                ends.enter_context(chat_api_served(config, cluster.address, pages))
                while not stopping:
                    cluster.turn()
        if settings.stop or not settings.address:
            stop(config.limits.drain_s)
    finally:
        ray.shutdown()


class RayCluster:
    """A gateway in the Ray cluster that this process has joined; `turn` again and again, then `close`."""

    def __init__(self, config: ServerConfig, settings: ClusterSettings, scaling: Scaling) -> None:
        """Raise StartError where the address, the keys or the directory cannot be used."""
        ray, link = _ray(), config.link
        each = len(config.model.devices)
        places = places_of([int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]], each)
        per_replica = 0.0 if settings.cpus_per_replica or not places else float(each)
        plan = Plan(
            config.with_full_paths(), settings.limits(scaling, places), settings.secret(link), settings.replica_port,
            # Of the machine itself all replicas share the processors, as many as they are.
            settings.cpus_per_replica or (0.0 if per_replica or not settings.address else 1.0), per_replica,
        )  # fmt: skip
        with contextlib.ExitStack() as ends:
            frontend = Frontend(link.bind, link.keys, link.allow_plain, config.quotas.bytes_per_s)
            ends.callback(frontend.close)
            actor = _start_directory(plan)
            try:
                secret = ray.get(actor.secret.remote(), timeout=START_S)  # that of the first gateway
            except Exception as error:
                raise StartError(f"the cluster's directory does not start: {error}") from None
            self.view = View()
            ends.callback(self.view.close)
            self.frontend = frontend
            self.gateway = Gateway(frontend, self.view.directory, Tickets(secret))
            self._ends = ends.pop_all()
        self.address = frontend.address
        self.health = GatewayHealth(time.monotonic, config.monitoring.hang_s, config.monitoring.http)
        _log.info("cluster of %d to %d replicas, its gateway at %s", plan.scaling.min, plan.scaling.max, self.address)

    def turn(self) -> None:
        """Answer robots. Raises StartError where no replica can start."""
        self.gateway.turn(TURN_S)
        self.health.turn(
            lambda: self.view.directory.replicas(time.monotonic()), self.gateway.redirected, self.gateway.turned_away,
            self.frontend.restarts,
        )  # fmt: skip
        self.view.turn()
        if self.view.failure:
            stop(0.0)  # or the next start would find what has failed
            raise StartError(self.view.failure)

    def close(self) -> None:
        """Close the gateway; replicas and directory go on. Safe to repeat."""
        self._ends.close()
        redirected, turned_away = self.gateway.redirected, self.gateway.turned_away
        _log.info("gateway closed: %d robots sent to replicas, %d turned away", redirected, turned_away)


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
                ray.kill(ray.get_actor(each["name"], NAMESPACE))
    _log.info("all replicas have ended")
