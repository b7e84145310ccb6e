"""The link between edge and verifier on virtual time, under the same conditions as the emulated one of real sockets.

The edge's end is a `edge_drafter.Link`, the verifier's end a `cloud_verifier.server.Post`. Messages are encoded as on
real sockets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from speculation.links import EmulatedWay, LinkConditions
from speculation.wire import AnyMessage, BeginStep, decode, encode
from vlm_nav_evaluation.virtual_time.timeline import Inbox, Timeline


class Channel:
    """One direction of the emulated link that real sockets have too."""

    def __init__(self, timeline: Timeline, way: EmulatedWay[Callable[[], None]]) -> None:
        self._timeline = timeline
        self.way = way
        self.bytes = 0

    @classmethod
    def pair(cls, timeline: Timeline, conditions: LinkConditions) -> tuple[Channel, Channel]:
        """Return the channels up and down of one link."""
        up, down = conditions.ways(0.0)
        return cls(timeline, up), cls(timeline, down)

    def send(self, payload: bytes, deliver: Callable[[], None], not_before: float = 0.0) -> float:
        """Send, at a given time at the earliest; `deliver` is called on arrival.

        Returns the time of arrival, infinite for a message that vanishes.
        """
        self.bytes += len(payload)
        arrival = self.way.put(deliver, len(payload), max(self._timeline.now, not_before))
        if arrival < math.inf:
            self._timeline.at(arrival, self._arrive)
        return arrival

    def _arrive(self) -> None:
        deliver = self.way.take(self._timeline.now)
        if deliver is not None:
            deliver()


class VirtualMailbox:
    """The verifier's end: a `Post`. Peers are known by the name under which they joined."""

    dropped = restarts = 0

    def __init__(self, timeline: Timeline) -> None:
        self.inbox: Inbox[tuple[bytes, list[bytes]]] = Inbox(timeline)
        self._edges: dict[bytes, Callable[[AnyMessage], None]] = {}

    def join(self, peer: bytes, send: Callable[[AnyMessage], None]) -> None:
        """Add an edge; `send` sends a message down to it."""
        self._edges[peer] = send

    def deliver(self, peer: bytes, *frames: bytes) -> None:
        """Receive a peer's message; a well-formed one has one frame."""
        self.inbox.put((peer, list(frames)))

    def wait(self, seconds: float) -> None:
        self.inbox.wait(seconds)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return self.inbox.take()

    def send(self, peer: bytes, message: AnyMessage, droppable: bool = False) -> bool:
        """Nothing is refused; what the link is too slow for waits in it."""
        self._edges[peer](message)
        return True

    def admit(self, peer: bytes, has_session: bool = True) -> None:
        """Every peer is admitted."""

    def waits(self, peer: bytes) -> bool:
        return any(who == peer for who, _ in self.inbox)

    def notify(self) -> None:
        """Nothing happens beside the server's loop."""

    def forget(self, peer: bytes) -> None:
        """Nothing is kept for a peer."""

    def client(self, peer: bytes) -> str:
        """There are no keys."""
        return ""

    def revoked(self) -> Sequence[str]:
        """There are no keys."""
        return ()


class VirtualLink:
    """The edge's end."""

    def __init__(self, timeline: Timeline, conditions: LinkConditions, mailbox: VirtualMailbox, peer: bytes) -> None:
        self._timeline = timeline
        self.rtt_s: float | None = conditions.up.delay_s + conditions.down.delay_s
        """The declared delay of both ways together."""
        self._mailbox = mailbox
        self._peer = peer
        self._inbox: Inbox[AnyMessage] = Inbox(timeline)
        self._up, self._down = Channel.pair(timeline, conditions)
        mailbox.join(peer, self._send_down)

    @property
    def bytes_up(self) -> int:
        return self._up.bytes

    @property
    def bytes_down(self) -> int:
        return self._down.bytes

    def send(self, message: AnyMessage) -> None:
        """A new step finds an empty inbox, as in `edge_drafter.link`."""
        if isinstance(message, BeginStep):
            self._inbox.clear()
        payload = encode(message)
        self._up.send(payload, partial(self._mailbox.deliver, self._peer, payload))

    def receive(self, timeout: float) -> AnyMessage | None:
        message = self._inbox.take()
        if message is None and timeout > 0.0:
            self._inbox.wait(timeout)
            message = self._inbox.take()
        return message

    def wait_for_message(self, seconds: float) -> float:
        """Wait until a message is there, at most so many seconds; return how many it took."""
        started = self._timeline.now
        self._inbox.wait(seconds)
        return self._timeline.now - started

    def _send_down(self, message: AnyMessage) -> None:
        payload = encode(message)
        self._down.send(payload, partial(self._take, payload))

    def _take(self, payload: bytes) -> None:
        self._inbox.put(decode(payload))
