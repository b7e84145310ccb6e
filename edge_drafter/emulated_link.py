"""The link's socket under declared conditions (`speculation.links`): what it carries arrives late, each way."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator

import zmq

from edge_drafter.link_socket import LinkSocket
from speculation.links import LinkConditions
from speculation.wire import MAX_MESSAGE_BYTES

MOST_WAITING, MOST_WAITING_BYTES = 1024, 2 * MAX_MESSAGE_BYTES
"""Received messages that may wait for their time of arrival; what comes beyond them is dropped."""


class EmulatedLinkSocket(LinkSocket):
    """A connection whose messages take as long as a link of these conditions would need for them."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        curve: tuple[tuple[bytes, ...], bytes, bytes] | None,
        conditions: LinkConditions,
        started: float,
    ) -> None:
        """`started`: when the link began, from which declared blackouts count."""
        super().__init__(context, address, curve)
        self._up, self._down = conditions.ways(started)
        self._waiting_bytes = 0

    def put(self, payload: bytes, now: float) -> None:
        """Send a payload; it leaves when it would have arrived."""
        self._up.put(payload, len(payload), now)

    def turn(self, now: float) -> Iterator[bytes]:
        """Send and receive what is due; yield the payloads that would have arrived by now."""
        while (payload := self._up.take(now)) is not None:
            super().put(payload, now)
        for payload in super().turn(now):
            has_room = len(self._down) < MOST_WAITING and self._waiting_bytes + len(payload) <= MOST_WAITING_BYTES
            if has_room and self._down.put(payload, len(payload), now) < math.inf:
                self._waiting_bytes += len(payload)
        while (payload := self._down.take(now)) is not None:
            self._waiting_bytes -= len(payload)
            yield payload

    def wait(self, until: float, wake: socket.socket, now: float) -> None:
        """Return when something is due or has arrived, at the latest at `until`."""
        super().wait(min(until, self._up.due, self._down.due), wake, now)

    def close(self) -> None:
        """Close the connection and drop what is under way; safe to repeat."""
        super().close()
        self._up.clear()
        self._down.clear()
        self._waiting_bytes = 0
