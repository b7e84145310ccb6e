"""Faults on virtual time: robots with their real link and step loop, a real cluster, and all between them that fails.

`python -m tests.fuzz.faults --faults 1000 --seed 1`. A fault is one of FAULTS: what it does, and to what. Whatever
fails, no robot gets a token that is not the target's, and every question of a robot that lives gets its whole answer.
"""

from __future__ import annotations

import argparse
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from greenlet import getcurrent

from edge_drafter import Drafter, DraftingConfig, Interruption, Mode, StepInterrupted, StepRequest, sources_of
from edge_drafter.link import LinkConfig, ZmqLink
from speculation.cancellation import Stop
from speculation.progress import progress
from speculation.wire import Hello
from tests.cloud_verifier.fake_target import EOS, VOCABULARY, greedy, next_token
from tests.fuzz.campaign import Broken
from tests.fuzz.edge import TimedModel
from tests.fuzz.verifier import IMAGE, watched
from tests.fuzz.virtual_cluster import Cluster
from tests.fuzz.virtual_link import VirtualLink, virtual_links
from tests.fuzz.virtual_network import Network, Way
from vlm_nav_evaluation.virtual_time.timeline import Killed, Timeline

FAULTS = (
    *(("kill", each) for each in ("gateway", "replica", "socket", "directory", "robot")),
    *(("freeze", each) for each in ("gateway", "replica", "directory", "robot", "link")),
    ("hang", "replica"),
    ("drain", "replica"),
    *(
        (what, each)
        for what in ("cut", "drop", "delay", "duplicate", "reorder", "garbage")
        for each in ("gateway", "replica", "link")
    ),
)
"""What happens to what. A replica's socket is a process of its own. What happens to the messages of a gateway or a
replica happens to those of all robots there; a link is one robot's. A replica that hangs stays frozen until it is
killed."""
ROBOTS, REPLICAS, GATEWAYS = 6, 3, 2
MAX_TOKENS = 24
MODES = (Mode.FULL, Mode.SD, Mode.PIPELINED, Mode.CLOUD, Mode.SERVER_SD, Mode.FSD, Mode.PROACTIVE)
PATIENCE_S, RESEND_S = 6.0, 1.0
BETWEEN_S = 0.8
"""Mean time from fault to fault."""
LONGEST_S = 3.0
"""Longest freeze: it lasts longer than the silence after which a link is given up."""
FOR_EVER_S = 1e6
QUIET_S = 30.0
"""How long no fault happens at the end: by then every robot is served, and every replica is ready."""
STARVED_S = 120.0


class World:
    """Robots, the network and the cluster; and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline()
        self.network = Network(self.timeline, self.rng)
        self.cluster = Cluster(self.timeline, self.network, GATEWAYS, REPLICAS, seed)
        self.robots = [Robot(self, n) for n in range(ROBOTS)]
        self.network.ways = [robot.way for robot in self.robots]
        self.happened: Counter[str] = Counter()

    def run(self, faults: int, progress: Callable[[int], object]) -> None:
        """Inject so many faults, then wait until every robot is served. Raises Broken."""
        services = [*self.cluster.services, *(robot.live for robot in self.robots)]
        with watched(random.Random(self.rng.random())) as watch, virtual_links(self.timeline):
            self.timeline.run([lambda: self._inject(faults, progress)], services)
        watch.check()

    def total(self, name: str) -> int:
        """Return a count of all robots."""
        return sum(getattr(robot, name) for robot in self.robots)

    @property
    def redirected(self) -> int:
        """Return how many robots gateways sent to a replica."""
        return sum(gateway.redirected for gateway in self.cluster.gateways)

    def __str__(self) -> str:
        times = sorted(seconds for robot in self.robots for seconds in robot.seconds)
        half, late = times[len(times) // 2], times[int(0.95 * len(times))]
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.happened.items()))
        seconds = f"{half:.2f} (median), {late:.2f} (p95), {times[-1]:.2f} (most)"
        return (
            f"{self.happened.total():,} faults in {self.timeline.now:,.0f} s of virtual time: "
            f"{self.total('answers'):,} answers, all the target's; 0 steps lost, {self.total('interrupted'):,} taken "
            f"up again, {self.total('killed')} robots killed, {self.redirected:,} sent to a replica; seconds of an "
            f"answer {seconds}\n{kinds}"
        )

    def _inject(self, faults: int, progress: Callable[[int], object]) -> None:
        self.timeline.sleep(5.0)  # until all are there
        for count in range(faults):
            self.timeline.sleep(self.rng.expovariate(1.0 / BETWEEN_S))
            what, where = FAULTS[count % len(FAULTS)] if count < len(FAULTS) else self.rng.choice(FAULTS)
            self.happened[f"{what} {where}"] += 1
            self._fault(what, where)
            progress(1)
        before = [robot.answers for robot in self.robots]
        self.timeline.sleep(QUIET_S)
        for robot, answers in zip(self.robots, before, strict=True):
            if robot.answers < answers + 2:
                raise Broken(f"{robot.name} was not served again after the last fault")
        for name, replica in self.cluster.replicas.items():
            if not replica.mailbox.is_up or replica.mailbox.frozen_until > self.timeline.now:
                raise Broken(f"{name} does not run again after the last fault")

    def _fault(self, what: str, where: str) -> None:
        seconds, now = self.rng.uniform(0.05, LONGEST_S), self.timeline.now
        robot = self.rng.choice(self.robots)
        gateway = self.rng.choice(self.cluster.gateways)
        replica = self.rng.choice(list(self.cluster.replicas.values()))
        directory = self.cluster.directory
        socket = gateway.mailbox if where == "gateway" else replica.mailbox
        match what, where:
            case "kill", "socket":
                socket.hang_up()
            case "kill", "robot":
                robot.kill()
            case "kill", "directory":
                directory.kill()
            case "kill", _:
                socket.kill()
            case "drain", _:
                replica.drain()
            case "hang", _:
                socket.frozen_until = FOR_EVER_S if socket.is_up else 0.0
            case "freeze", "robot":
                robot.freeze(seconds)
            case "freeze", "link":
                robot.way.frozen_until = now + seconds
            case "freeze", "directory":
                directory.frozen_until = now + seconds
            case "freeze", _:
                socket.frozen_until = max(socket.frozen_until, now + seconds)
            case "cut", "link":
                self.network.cut(robot.way, seconds, self.rng.random() < 0.5)
            case "cut", _:
                socket.down_until = now + seconds
                for way in self.network.at(socket.address):
                    self.network.cut(way, 0.0, self.rng.random() < 0.5)
            case _, "link":
                robot.way.left[what] = self.rng.randrange(1, 12)
            case _:
                socket.left[what] = self.rng.randrange(1, 12)


class Robot:
    """One robot, which asks one question after another and knows the answers. It may be killed and come again."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"robot {number}"
        self._world, self._number = world, number
        self.way = Way(world.network, self.name)
        self._task: Any = None
        self._link: VirtualLink | None = None
        """None while there is no process."""
        self.answers = self.killed = self.interrupted = 0
        self.seconds: list[float] = []
        """What every answer took, interruptions included."""
        self._asked = self._steps = 0

    def kill(self) -> None:
        """Let the process end where it stands."""
        if self._link is None:
            return
        self.killed += 1
        self._world.timeline.kill(self._task)
        self._world.timeline.kill(self._link.task)

    def freeze(self, seconds: float) -> None:
        """Let the process stand still: the step and the link's thread."""
        self.way.process_frozen_until = self._world.timeline.now + seconds

    def live(self) -> None:
        """Ask for ever, in a new process whenever the one before was killed."""
        self._task = getcurrent()
        while True:
            try:
                self._process()
            except Killed:
                self._link = None
                self.way.close()
                self._world.timeline.sleep(0.2)

    def _process(self) -> None:
        world = self._world
        hello = Hello("t" * 16, VOCABULARY)
        self._link = VirtualLink(self.way, LinkConfig(world.cluster.addresses, hello), world.timeline.clock)
        drafters = {mode: self._drafter(mode, self._link) for mode in MODES}
        while True:
            self._asked += 1
            mode = MODES[(self._asked + self._number) % len(MODES)]
            self._question(self._link, drafters[mode], f"long {self.name} {self._asked}")

    def _drafter(self, mode: Mode, link: ZmqLink) -> Drafter:
        config = DraftingConfig.of(mode, patience_s=PATIENCE_S, resend_s=RESEND_S)
        model = FreezingModel(self._world.timeline.sleep, lambda prefix: _guess(model.prompt, prefix), VOCABULARY)
        model.way = self.way
        return Drafter(
            sources_of(config, model), link, config, self._world.timeline.clock, max_draft=16, cpu_clock=lambda: 0.0
        )

    def _question(self, link: ZmqLink, drafter: Drafter, prompt: str) -> None:
        timeline, began = self._world.timeline, self._world.timeline.now
        truth = tuple(greedy(prompt, IMAGE, MAX_TOKENS))
        committed: tuple[int, ...] = ()
        while True:
            if timeline.now - began > STARVED_S:
                raise Broken(f"{self.name}: {prompt!r} got {len(committed)} tokens in {STARVED_S:g} s: {link.why}")
            if not link.wait_nominal(1.0):
                continue
            self._steps += 1
            request = StepRequest(self._steps, prompt, IMAGE, (EOS,), MAX_TOKENS, None, committed)
            try:
                tokens = drafter.run(request).tokens
            except StepInterrupted as stop:
                if stop.cause is not Interruption.LINK_LOST:
                    raise Broken(f"{self.name} lost a step: {stop.cause.value}: {stop}") from stop
                self.interrupted += 1
                committed = stop.committed
                if committed != truth[: len(committed)]:
                    raise Broken(f"{self.name}: {committed} was committed, the answer is {truth}") from stop
                continue
            if tokens != truth:
                raise Broken(f"{self.name}: {tokens} was committed, the answer is {truth}")
            self.answers += 1
            self.seconds.append(timeline.now - began)
            return


class FreezingModel(TimedModel):
    """A draft model whose process may be frozen."""

    way: Way

    def _pass_time(self, stop: Stop | None) -> None:
        super()._pass_time(stop)
        self.way.thaw()


def _guess(prompt: str, prefix: Sequence[int]) -> int:
    """Return the target's next token, or another one in one case of four."""
    token = next_token(prompt, IMAGE, prefix)
    return token if zlib.crc32(repr((prompt, *prefix)).encode()) % 4 else 1 + token % (VOCABULARY - 1)


def inject(faults: int, seed: int, progress: Callable[[int], object] = lambda count: None) -> World:
    """Inject so many faults. Raises Broken where a token was wrong, a step lost or a robot starved."""
    world = World(seed)
    world.run(faults, progress)
    return world


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with progress(total=options.faults, unit=" faults") as bar:
        try:
            world = inject(options.faults, options.seed, bar.update)
        except Broken as broken:
            bar.close()
            print(f"seed {options.seed}: {broken}", file=sys.stderr)
            return 1
    print(world)
    return 0


if __name__ == "__main__":
    sys.exit(main())
