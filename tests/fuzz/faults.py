"""Faults on virtual time: robots with their real link and step loop, the real server, and all between them that fails.

`python -m tests.fuzz.faults --faults 1000 --seed 1`. A fault is one of FAULTS: what it does, and to what. Whatever
fails, no robot gets a token that is not the target's, and every question of a robot that lives gets its whole answer.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greenlet import getcurrent
from tqdm import tqdm

from cloud_verifier.config import ServerConfig
from cloud_verifier.server import Server
from edge_drafter import Drafter, DraftingConfig, Interruption, Mode, StepInterrupted, StepRequest, sources_of
from edge_drafter.link import LinkConfig, ZmqLink
from edge_drafter.link_socket import SEND_HIGH_WATER
from evaluation.virtual_time.timeline import Timeline
from speculation import wire
from speculation.profiles import DeviceProfile
from speculation.wire import Draft, EarlyTokens, Fetch, Hello, Ping, Pong
from tests.cloud_verifier.fake_target import EOS, VOCABULARY, greedy, next_token
from tests.fuzz.campaign import Broken
from tests.fuzz.edge import ADDRESS, TimedModel
from tests.fuzz.generator import spoiled
from tests.fuzz.verifier import IMAGE, FuzzEngine, FuzzSelfDraft, Watch
from tests.fuzz.virtual_link import Killed, Processes, VirtualLink, Wire, virtual_links

FAULTS = (
    *(("kill", each) for each in ("door", "replica", "robot")),
    *(("freeze", each) for each in ("door", "replica", "robot", "link")),
    *(
        (what, each)
        for what in ("cut", "drop", "delay", "duplicate", "reorder", "garbage")
        for each in ("door", "link")
    ),
)
"""What happens to what. What happens to the door happens to every robot's link at once."""
ROBOTS, SESSIONS = 4, 8
MAX_TOKENS = 24
ONE_WAY_S, VERIFY_S = 0.01, 0.04
MODES = (Mode.FULL, Mode.SD, Mode.PIPELINED, Mode.CLOUD, Mode.SERVER_SD, Mode.FSD, Mode.PROACTIVE)
PATIENCE_S, RESEND_S = 6.0, 1.0
BETWEEN_S = 0.8
"""Mean time from fault to fault."""
LONGEST_S = 3.0
"""Of a freeze, more than the silence after which a link is given up."""
QUIET_S = 30.0
"""Without faults at the end: by then every robot is served."""
STARVED_S = 120.0
HARMLESS = (Draft, EarlyTokens, Ping, Pong, Fetch)
"""What garbage may turn out to be. A link that makes another Commit, Fault or BeginStep out of one is a liar, and its
steps end in a contradiction: see `tests.fuzz.edge`."""


@dataclass
class Way:
    """One robot's link: who it is to the server, and what happens to its next messages."""

    wire: Wire
    name: str
    connections: int = 0
    peer: bytes = b""
    """Empty while there is no connection."""
    frozen_until: float = 0.0
    latest: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """When the last message up, and down, arrives."""
    left: Counter[str] = field(default_factory=Counter)
    """How many more messages are dropped, delayed and so on."""
    opened: int = 0
    stuck: deque[bytes] = field(default_factory=lambda: deque(maxlen=SEND_HIGH_WATER))
    """What the robot sends while there is no connection."""


class World:
    """Everything: robots, links, door and verifier. A `Post` to the server."""

    dropped = restarts = 0

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline()
        self.processes = Processes(self.timeline)
        self.ways = [Way(Wire(self.processes, self._taker(n)), f"robot {n}") for n in range(ROBOTS)]
        self.robots = [Robot(self, n) for n in range(ROBOTS)]
        self.mail: deque[tuple[bytes, list[bytes]]] = deque()
        self.server_task: Any = None
        self.frozen_until = 0.0
        self.over = False
        self.happened: Counter[str] = Counter()

    # --- what runs

    def run(self, faults: int, progress: Callable[[int], object]) -> None:
        """Inject so many faults, then wait until every robot is served. Raises Broken."""
        watch, log, edge = Watch(), logging.getLogger("cloud_verifier"), logging.getLogger("edge_drafter")
        levels = log.level, edge.level
        log.addHandler(watch)
        log.setLevel(logging.WARNING)
        edge.setLevel(logging.CRITICAL)
        propagates, log.propagate = log.propagate, False
        try:
            with virtual_links(self.processes):
                self.timeline.run(
                    [lambda: self._inject(faults, progress)], [self._serve, *(robot.live for robot in self.robots)]
                )
        finally:
            log.removeHandler(watch)
            log.setLevel(levels[0])
            edge.setLevel(levels[1])
            log.propagate = propagates
        if watch.tracebacks:
            raise Broken(watch.tracebacks[0])

    def _serve(self) -> None:
        self.server_task = getcurrent()
        config = ServerConfig.of(
            Path("model"), max_sessions=SESSIONS, early_rate=1000.0, max_draft=16, policy="full_budget"
        )
        profile = DeviceProfile("virtual", verify_s=VERIFY_S, server_draft_s=VERIFY_S / 10)
        while True:
            try:
                server = Server(
                    FuzzEngine(), config, profile, self, clock=self.timeline.clock, self_draft=FuzzSelfDraft()
                )
                while True:
                    server.turn()
            except Killed:
                self.processes.sleep(0.3)

    def _inject(self, faults: int, progress: Callable[[int], object]) -> None:
        for count in range(faults):
            self.processes.sleep(self.rng.expovariate(1.0 / BETWEEN_S))
            what, where = FAULTS[count % len(FAULTS)] if count < len(FAULTS) else self.rng.choice(FAULTS)
            self.happened[f"{what} {where}"] += 1
            self._fault(what, where)
            progress(1)
        before = [robot.answers for robot in self.robots]
        self.processes.sleep(QUIET_S)
        for robot, answers in zip(self.robots, before, strict=True):
            if robot.answers < answers + 2:
                raise Broken(f"{robot.name} was not served again after the last fault")
        self.over = True

    def _fault(self, what: str, where: str) -> None:
        one = self.rng.randrange(ROBOTS)
        ways = self.ways if where in ("door", "replica") else [self.ways[one]]
        seconds = self.rng.uniform(0.05, LONGEST_S)
        match what, where:
            case "kill", "robot":
                self.robots[one].kill()
            case "kill", _:
                self.mail.clear()
                for way in ways:
                    self._cut(way, self.rng.uniform(0.1, 0.8))
                if where == "replica":
                    self.processes.kill(self.server_task)
            case "freeze", "replica":
                self.frozen_until = self.timeline.now + seconds
            case "freeze", "robot":
                self.robots[one].frozen_until = self.timeline.now + seconds
            case "freeze", _:
                for way in ways:
                    way.frozen_until = self.timeline.now + seconds
            case "cut", _:
                for way in ways:
                    self._cut(way, self.rng.uniform(0.01, 2.5))
            case _:
                for way in ways:
                    way.left[what] = self.rng.randrange(1, 12)

    # --- the links

    def _taker(self, number: int) -> Callable[[bytes], None]:
        return lambda payload: self._up(self.ways[number], payload)

    def _cut(self, way: Way, seconds: float) -> None:
        """End a link's connection, with what is under way on it; ZeroMQ makes another one a little later."""
        way.peer = b""
        way.connections += 1
        number = way.connections

        def again() -> None:
            if way.connections == number:
                way.peer = b"%s.%d" % (way.name.encode(), number)
                way.wire.is_new = True
                way.wire.wake()
                while way.stuck:
                    self._send_up(way, way.stuck.popleft())

        self.timeline.at(self.timeline.now + seconds, again)

    def _up(self, way: Way, payload: bytes) -> None:
        if way.opened != way.wire.opened:  # the link has given up its connection for a new one
            way.opened = way.wire.opened
            way.stuck.clear()
            self._cut(way, ONE_WAY_S)
        if way.peer:
            self._send_up(way, payload)
        else:
            way.stuck.append(payload)

    def _send_up(self, way: Way, payload: bytes) -> None:
        peer = way.peer

        def arrive(one: bytes) -> None:
            if way.peer == peer:
                self.mail.append((peer, [one]))
                self.processes.wake(self.server_task)

        self._carry(way, 0, payload, arrive)

    def _carry(self, way: Way, side: int, payload: bytes, arrive: Callable[[bytes], None]) -> None:
        now, left = self.timeline.now, way.left
        copies, delay, overtakes = [payload], ONE_WAY_S, False
        for what in [what for what, count in left.items() if count > 0]:
            left[what] -= 1
            match what:
                case "drop":
                    return
                case "delay":
                    delay += self.rng.uniform(0.0, 1.0)
                case "duplicate":
                    copies = copies * 2
                case "reorder":
                    delay, overtakes = delay + self.rng.uniform(0.0, 0.5), True
                case "garbage":
                    copies = [*self._garbage(payload), *copies]
        for one in copies:
            at = max(now + delay, way.frozen_until)
            at = at if overtakes else max(at, way.latest[side])
            way.latest[side] = max(at, way.latest[side])
            self.timeline.at(at, lambda one=one: arrive(one))  # type: ignore[misc]

    def _garbage(self, payload: bytes) -> list[bytes]:
        made = [spoiled([payload], self.rng) for _ in range(3)]
        return [each for each in made if _is_harmless(each)]

    # --- Post

    def wait(self, seconds: float) -> None:
        """See `Post`."""
        while self.timeline.now < self.frozen_until:
            self.processes.sleep(self.frozen_until - self.timeline.now)
        if not self.mail:
            self.processes.wait(seconds)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """See `Post`."""
        self.processes.check()
        return self.mail.popleft() if self.mail else None

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        """See `Post`."""
        self.processes.check()
        way = next((way for way in self.ways if way.peer == peer), None)
        if way is None:
            return False

        def arrive(one: bytes) -> None:
            if way.peer == peer:
                way.wire.deliver(one)

        self._carry(way, 1, wire.encode(message), arrive)
        return True

    def admit(self, peer: bytes, has_session: bool = True) -> None:
        """See `Post`."""

    def notify(self) -> None:
        """See `Post`."""

    def waits(self, peer: bytes) -> bool:
        """See `Post`."""
        return any(who == peer for who, _ in self.mail)

    def forget(self, peer: bytes) -> None:
        """See `Post`."""

    def client(self, peer: bytes) -> str:
        """See `Post`; there are no keys."""
        return ""

    def revoked(self) -> Sequence[str]:
        """See `Post`; there are no keys."""
        return ()


class Robot:
    """One robot, which asks one question after another and knows the answers. It may be killed and come again."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"robot {number}"
        self._world, self._number = world, number
        self._task: Any = None
        self._link: VirtualLink | None = None
        self.frozen_until = 0.0
        self.answers = self.killed = self.interrupted = 0
        self.seconds: list[float] = []
        """Of every answer, interruptions included."""
        self._asked = self._steps = 0
        self._asked_at = 0.0

    def kill(self) -> None:
        """Let the process end where it stands."""
        self.killed += 1
        self._world.processes.kill(self._task)
        if self._link is not None and not self._link.task.dead:
            self._world.processes.kill(self._link.task)

    def live(self) -> None:
        """Ask for ever, in a new process whenever the one before was killed."""
        self._task = getcurrent()
        while True:
            try:
                self._process()
            except Killed:
                self._world._cut(self._world.ways[self._number], 0.01)
                self._world.processes.sleep(0.2)

    def _process(self) -> None:
        world = self._world
        hello = Hello("t" * 16, VOCABULARY)
        self._link = VirtualLink(world.ways[self._number].wire, LinkConfig(ADDRESS, hello), world.timeline.clock)
        drafters = {mode: self._drafter(mode, self._link) for mode in MODES}
        while True:
            self._asked += 1
            mode = MODES[(self._asked + self._number) % len(MODES)]
            self._question(self._link, drafters[mode], f"long {self.name} {self._asked}")

    def _drafter(self, mode: Mode, link: ZmqLink) -> Drafter:
        config = DraftingConfig.of(mode, patience_s=PATIENCE_S, resend_s=RESEND_S)
        model = TimedModel(self._world.processes, lambda prefix: _guess(model.prompt, prefix), VOCABULARY)
        return Drafter(
            sources_of(config, model), link, config, self._world.timeline.clock, max_draft=16, cpu_clock=lambda: 0.0
        )

    def _question(self, link: ZmqLink, drafter: Drafter, prompt: str) -> None:
        timeline, began = self._world.timeline, self._world.timeline.now
        truth = tuple(greedy(prompt, IMAGE, MAX_TOKENS))
        committed: tuple[int, ...] = ()
        while True:
            while timeline.now < self.frozen_until:
                self._world.processes.sleep(self.frozen_until - timeline.now)
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


def _guess(prompt: str, prefix: Sequence[int]) -> int:
    """Return the target's next token, or another one in one case of four."""
    token = next_token(prompt, IMAGE, prefix)
    return token if zlib.crc32(repr((prompt, *prefix)).encode()) % 4 else 1 + token % (VOCABULARY - 1)


def _is_harmless(payload: bytes) -> bool:
    try:
        return isinstance(wire.decode(payload), HARMLESS)
    except wire.WireError:
        return True


@dataclass
class Report:
    """What a run of faults came to."""

    faults: Counter[str]
    virtual_s: float
    answers: int
    interrupted: int
    killed: int
    seconds: list[float]

    def __str__(self) -> str:
        times = sorted(self.seconds)
        half, late = times[len(times) // 2], times[int(0.95 * len(times))]
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        seconds = f"{half:.2f} (median), {late:.2f} (p95), {times[-1]:.2f} (most)"
        return (
            f"{self.faults.total():,} faults in {self.virtual_s:,.0f} s of virtual time: {self.answers:,} answers, all "
            f"the target's; 0 steps lost, {self.interrupted:,} taken up again, {self.killed} robots killed; "
            f"seconds of an answer {seconds}\n{kinds}"
        )


def inject(faults: int, seed: int, progress: Callable[[int], object] = lambda count: None) -> Report:
    """Inject so many faults. Raises Broken where a token was wrong, a step lost or a robot starved."""
    world = World(seed)
    world.run(faults, progress)
    robots = world.robots
    return Report(
        world.happened, world.timeline.now, sum(robot.answers for robot in robots),
        sum(robot.interrupted for robot in robots), sum(robot.killed for robot in robots),
        [seconds for robot in robots for seconds in robot.seconds],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tqdm(total=options.faults, unit=" faults") as bar:
        try:
            report = inject(options.faults, options.seed, bar.update)
        except Broken as broken:
            bar.close()
            print(f"seed {options.seed}: {broken}", file=sys.stderr)
            return 1
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
