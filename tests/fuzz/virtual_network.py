"""The network between robots and the processes they reach, on virtual time: connections, and all that fails of them.

A robot's socket is a `Way`, a process's is a `Mailbox`; each message between the two is carried by `Network`.
"""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from edge_drafter.link_socket import SEND_HIGH_WATER
from speculation import wire
from speculation.links import IDEAL, WayConditions
from speculation.wire import Draft, EarlyTokens, Fetch, Ping, Pong
from tests.fuzz.virtual_link import Wire
from tests.hostile import mutated
from vlm_nav_evaluation.virtual_time.link import Channel, VirtualMailbox
from vlm_nav_evaluation.virtual_time.timeline import Timeline

ONE_WAY_S = 0.01
AGAIN_S = (0.1, 1.0)
"""When ZeroMQ tries again where nobody listens."""
HARMLESS = (Draft, EarlyTokens, Ping, Pong, Fetch)
"""What garbage may turn out to be. A link that makes another Commit, Fault or BeginStep out of one is a liar, and its
steps end in a contradiction: see `tests.fuzz.edge`."""


class Way(Wire):
    """One robot's socket: where it is connected to, and what happens to its next messages."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network.timeline, lambda payload: network.up(self, payload))
        self.name, self._network = name, network
        self.address = ""
        self.peer = b""
        """What the process at the other end calls it; empty while there is no connection."""
        self.number = 0
        """Number of the connection, or of the attempt to make one."""
        self.down_until = self.frozen_until = self.process_frozen_until = 0.0
        """Until when it cannot connect, brings nothing, and the robot's process stands still."""
        self.left: Counter[str] = Counter()
        """How many more messages are dropped, delayed and so on."""
        self.up, self.down = Channel.pair(network.timeline, IDEAL)
        self.stuck: deque[bytes] = deque(maxlen=SEND_HIGH_WATER)
        """What the robot sends while there is no connection."""

    def open(self, address: str) -> None:
        super().open(address)
        self.address = address
        self._network.connect(self)

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        super().wait(until, wake, now)
        self.thaw()

    def thaw(self) -> None:
        """Wait while the robot's process is frozen."""
        timeline = self._network.timeline
        while timeline.now < self.process_frozen_until:
            timeline.sleep(self.process_frozen_until - timeline.now)

    def close(self) -> None:
        """End the connection, as the end of the robot's process does."""
        super().close()
        self._network.disconnect(self)


class Mailbox(VirtualMailbox):
    """The socket of one process, and what that process has of time. `is_up`: whether it runs, frozen or not."""

    def __init__(self, network: Network, address: str) -> None:
        super().__init__(network.timeline)
        self.address = address
        self.task: Any = None
        """The task that is the process."""
        self.is_up = False
        self.down_until = self.frozen_until = 0.0
        self.left: Counter[str] = Counter()
        self._network, self._timeline = network, network.timeline
        network.mailboxes[address] = self

    def listen(self) -> None:
        """Take connections."""
        self.inbox.clear()
        self.frozen_until, self.is_up = 0.0, True

    def end(self) -> None:
        """End all connections, and take no more."""
        self.is_up = False
        self.hang_up()

    def kill(self) -> None:
        """Let the process end where it stands."""
        if self.is_up:
            self._timeline.kill(self.task)

    def hang_up(self) -> None:
        """End all connections, with what is under way on them."""
        self.inbox.clear()
        for way in self._network.at(self.address):
            self._network.cut(way, 0.0)

    def wait(self, seconds: float) -> None:
        """Wait for messages; a process that is frozen is so when it next waits."""
        self.thaw()
        super().wait(seconds)
        self.thaw()

    def thaw(self) -> None:
        """Wait while this process is frozen."""
        while self._timeline.now < self.frozen_until:
            self._timeline.sleep(self.frozen_until - self._timeline.now)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Raises Killed."""
        self._timeline.check()
        return super().receive()

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        """Raises Killed."""
        self._timeline.check()
        return self._network.down(self, peer, wire.encode(message))

    def client(self, peer: bytes) -> str:
        """Robots are known by their names, as where they have keys."""
        return peer.rpartition(b".")[0].decode()


class Network:
    """All ways and mailboxes. What fails follows from `rng`."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self.timeline, self.rng = timeline, rng
        self.ways: list[Way] = []
        self.mailboxes: dict[str, Mailbox] = {}

    def at(self, address: str) -> list[Way]:
        """Return the robots' sockets that are connected to an address, or try to be."""
        return [way for way in self.ways if way.address == address]

    def connect(self, way: Way) -> None:
        """Begin a connection to the way's address."""
        self.disconnect(way)
        way.stuck.clear()
        way.lost = False
        self._try(way, ONE_WAY_S)

    def disconnect(self, way: Way) -> None:
        """End a way's connection from its own side, with what is under way on it."""
        way.number += 1
        way.peer = b""
        way.up.way.clear()
        way.down.way.clear()

    def cut(self, way: Way, seconds: float, noticed: bool = True) -> None:
        """End a way's connection with what is under way on it; ZeroMQ makes another one when `seconds` are over.

        noticed: the robot's socket learns of it at once; else the network is just gone.
        """
        self.disconnect(way)
        way.down_until = max(way.down_until, self.timeline.now + seconds)
        if noticed:
            self._lose(way)
        self._try(way, self.rng.uniform(*AGAIN_S))

    def up(self, way: Way, payload: bytes) -> None:
        """Carry what a robot sends."""
        if way.peer:
            mailbox = self.mailboxes[way.address]
            self._carry(way, mailbox, way.up, payload, partial(mailbox.deliver, way.peer))
        else:
            way.stuck.append(payload)

    def down(self, mailbox: Mailbox, peer: bytes, payload: bytes) -> bool:
        """Carry what a process sends; return whether that peer is connected to it."""
        way = next((way for way in self.at(mailbox.address) if way.peer == peer), None)
        if way is not None:
            self._carry(way, mailbox, way.down, payload, way.inbox.put)
        return way is not None

    def _try(self, way: Way, seconds: float) -> None:
        """Connect after so many seconds, or try again later where that cannot be."""
        number, mailbox, timeline = way.number, self.mailboxes[way.address], self.timeline

        def attempt() -> None:
            if way.number != number:
                return
            gone_until = max(way.down_until, way.frozen_until, mailbox.down_until)
            if timeline.now < gone_until:
                self._try(way, gone_until - timeline.now + ONE_WAY_S)
            elif not mailbox.is_up:
                self._lose(way)
                self._try(way, self.rng.uniform(*AGAIN_S))
            else:
                way.peer = b"%s.%d" % (way.name.encode(), number)
                way.lost, way.is_new = False, True
                way.inbox.notify()
                while way.stuck and way.peer:
                    self.up(way, way.stuck.popleft())

        timeline.at(timeline.now + seconds, attempt)

    def _lose(self, way: Way) -> None:
        way.lost = True
        way.inbox.notify()

    def _carry(
        self, way: Way, mailbox: Mailbox, channel: Channel, payload: bytes, deliver: Callable[[bytes], None]
    ) -> None:
        copies, delay, overtakes = [payload], ONE_WAY_S, False
        for left in (way.left, mailbox.left):
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
                        made = [mutated([payload], self.rng) for _ in range(3)]
                        copies = [*filter(_is_harmless, made), *copies]
        channel.way.conditions = WayConditions(delay, reorder=overtakes)
        for one in copies:
            channel.send(one, partial(deliver, one), not_before=way.frozen_until)


def _is_harmless(payload: bytes) -> bool:
    try:
        return isinstance(wire.decode(payload), HARMLESS)
    except wire.WireError:
        return True
