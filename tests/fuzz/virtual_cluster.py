"""A cluster on virtual time: production's server, directory, controller, gateway and tickets; its processes are tasks.

What stands in for Ray: replicas' reports take a moment to the directory and are lost while that is away, gateways go by
copies of it (see `cloud_verifier.cluster.on_ray.View`), a process that was killed is started again, and an end is known
once the directory is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from greenlet import getcurrent

from cloud_verifier.cluster.controller import Controller
from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.gateway import Gateway
from cloud_verifier.cluster.on_ray import LOOK_S, STALE_S, TURN_S, VIEW_S
from cloud_verifier.cluster.scaling import Scaler, Scaling
from cloud_verifier.cluster.tickets import SECRET_BYTES, Tickets
from cloud_verifier.config import ServerConfig
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from cloud_verifier.slo import Standing
from speculation.profiles import DeviceProfile
from tests.fuzz.verifier import FuzzEngine, FuzzSelfDraft
from tests.fuzz.virtual_network import Mailbox, Network
from vlm_nav_evaluation.virtual_time.timeline import Killed, Timeline

SESSIONS = 8
VERIFY_S = 0.04
DRAIN_S = 0.7
"""Less than some answers take, so that robots are sent away in the midst of them too."""
START_S = (0.3, 2.0)
"""Until a process that was killed is there again."""
REPORTED_S = (0.001, 0.05)
EPOCH_S = 1.8e9
"""The wall clock at the beginning, seconds since 1970."""
SKEW_S = 10.0
"""How wrong a machine's wall clock is at most; two together stay within a ticket's validity."""


class Replica:
    """One replica: a verifier that is started, killed and drained."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"replica-{number}"
        self.mailbox = Mailbox(cluster.network, f"tcp://127.0.0.1:{6000 + number}")
        self.server: Server | None = None
        self.wanted = False
        self.died = self.ended = False
        """Whether its process has died, or ended as it was to, until the directory knows it."""
        self._cluster, self._wall = cluster, cluster.wall_clock()

    def start(self) -> None:
        """Let the process begin."""
        self.wanted = True
        self._cluster.timeline.wake(self.mailbox.task)

    def drain(self) -> None:
        """Let it send its robots elsewhere and end, as SIGTERM does."""
        if self.server is not None:
            self.server.drain()

    def live(self) -> None:
        """Serve whenever that is wanted."""
        timeline, self.mailbox.task = self._cluster.timeline, getcurrent()
        while True:
            while not self.wanted:
                timeline.wait(60.0)
            timeline.sleep(self._cluster.dice.uniform(*START_S))
            try:
                self._serve()
                self.wanted, self.ended = False, True
            except Killed:
                self.died = True
            self.mailbox.end()
            self.server = None

    def check_ticket(self, ticket: bytes, client: str) -> None:
        """Raise TicketError unless a ticket admits a client here now."""
        self._cluster.tickets.check(ticket, self.name, client, self._wall())

    def report(self, standing: Standing) -> None:
        """Tell the directory how the server stands."""
        phase = Phase.DRAINING if standing.draining else Phase.READY
        memory = min(1.0, max(0.0, standing.memory))
        self._cluster.directory.report(
            Status(
                self.name, phase, self._born, self.mailbox.address, "", standing.sessions, SESSIONS, memory,
                standing.utilisation, standing.late,
            )
        )  # fmt: skip

    def _serve(self) -> None:
        self._born = self._wall()
        config = ServerConfig.of(
            Path("model"), max_sessions=SESSIONS, early_rate=1000.0, max_draft=16, policy="full_budget", drain_s=DRAIN_S
        )
        profile = DeviceProfile("virtual", verify_s=VERIFY_S, server_draft_s=VERIFY_S / 10)
        machine = Machine(FuzzEngine(), FuzzSelfDraft(), profile)
        self.server = Server(machine, config, self.mailbox, self._cluster.clock, membership=self)
        self.mailbox.listen()
        self.server.run()


class DirectoryProcess:
    """Directory and controller in a process of their own, as Ray's actor."""

    def __init__(self, cluster: Cluster) -> None:
        self.directory: Directory | None = None
        self.controller: Controller | None = None
        self.task: Any = None
        self.frozen_until = 0.0
        self._cluster = cluster
        self._reports: list[Status] = []

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is frozen."""
        return self.controller is not None

    @property
    def answers(self) -> bool:
        """Whether gateways learn from it now."""
        return self.is_up and self._cluster.clock() >= self.frozen_until

    def kill(self) -> None:
        """Let it end where it stands."""
        if self.is_up:
            self._cluster.timeline.kill(self.task)

    def report(self, status: Status) -> None:
        """Bring a replica's report on its way."""
        cluster = self._cluster
        delay = cluster.dice.uniform(*REPORTED_S)
        cluster.timeline.at(cluster.clock() + delay, lambda: self._reports.append(status))

    def live(self) -> None:
        """Direct, from nothing after each death."""
        self.task = getcurrent()
        while True:
            try:
                self._direct()
            except Killed:
                self.directory = self.controller = None
                self._cluster.timeline.sleep(self._cluster.dice.uniform(*START_S))

    def _direct(self) -> None:
        cluster, self.frozen_until = self._cluster, 0.0
        count = len(cluster.replicas)
        directory = self.directory = Directory()
        scaler = Scaler(Scaling(count, count), len(cluster.names))
        controller = self.controller = Controller(directory, scaler, cluster, count)
        self._reports.clear()
        while True:
            now = cluster.clock()
            for status in self._reports:
                controller.reported(status, now)
            self._reports.clear()
            for each in cluster.replicas.values():
                if each.died:
                    each.died = False
                    controller.died(each.name)
                if each.ended:
                    each.ended = False
                    controller.ended(each.name)
            controller.turn(now)
            cluster.timeline.sleep(LOOK_S)
            while cluster.clock() < self.frozen_until:
                cluster.timeline.sleep(self.frozen_until - cluster.clock())


class ClusterGateway:
    """One of the cluster's gateways."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.mailbox = Mailbox(cluster.network, f"tcp://127.0.0.1:{5000 + number}")
        self.redirected = 0
        self._cluster, self._number, self._wall = cluster, number, cluster.wall_clock()

    def live(self) -> None:
        """Send robots on."""
        self.mailbox.task = getcurrent()
        while True:
            try:
                self._serve()
            except Killed:
                self.mailbox.end()
                self._cluster.timeline.sleep(self._cluster.dice.uniform(*START_S))

    def _serve(self) -> None:
        cluster, view = self._cluster, Directory()
        gateway = Gateway(self.mailbox, view, cluster.tickets, cluster.clock, self._wall)
        gateway._dice = random.Random(f"gateway {self._number} {cluster.clock()}")
        latest: tuple[Status, ...] = ()
        asked_at = latest_at = -STALE_S
        self.mailbox.listen()
        while True:
            before = gateway.redirected
            gateway.turn(TURN_S)
            self.redirected += gateway.redirected - before
            now = cluster.clock()
            if now - asked_at >= VIEW_S and cluster.directory.answers:
                asked_at = latest_at = now
                latest = cluster.directory.directory.replicas(now)  # type: ignore[union-attr]
            if now - latest_at > STALE_S:
                continue
            for name in {each.name for each in view.replicas(now)} - {each.name for each in latest}:
                view.gone(name)
            for each in latest:
                view.report(each, now)


class Cluster:
    """Gateways, the directory and replicas, which the controller runs as its `Fleet`.

    `services` are to run beside the robots.
    """

    def __init__(self, timeline: Timeline, network: Network, gateways: int, replicas: int, seed: int) -> None:
        self.timeline, self.network = timeline, network
        self.dice = random.Random(f"cluster {seed}")
        self.clock = timeline.clock
        self.tickets = Tickets(self.dice.randbytes(SECRET_BYTES))
        self.directory = DirectoryProcess(self)
        self.gateways = [ClusterGateway(self, number) for number in range(gateways)]
        made = [Replica(self, number + 1) for number in range(replicas)]
        self.replicas = {each.name: each for each in made}

    @property
    def addresses(self) -> str:
        """The gateways' addresses, as robots have them."""
        return ",".join(each.mailbox.address for each in self.gateways)

    @property
    def services(self) -> list[Callable[[], None]]:
        """What runs, in tasks of their own."""
        gateways, replicas = [each.live for each in self.gateways], [each.live for each in self.replicas.values()]
        return [self.directory.live, *gateways, *replicas]

    @property
    def names(self) -> Collection[str]:
        return [name for name, each in self.replicas.items() if each.wanted or each.ended]

    def start(self, name: str) -> None:
        self.replicas[name].start()

    def drain(self, name: str) -> None:
        self.replicas[name].drain()

    def shed(self, name: str, robots: int) -> None:
        server = self.replicas[name].server
        if server is not None:
            server.shed(robots)

    def kill(self, name: str) -> None:
        self.replicas[name].mailbox.kill()

    def wall_clock(self) -> Callable[[], float]:
        """Return the wall clock of one more machine, in seconds since 1970: it is fast or slow."""
        error = self.dice.uniform(-SKEW_S, SKEW_S)
        return lambda: EPOCH_S + error + self.clock()
