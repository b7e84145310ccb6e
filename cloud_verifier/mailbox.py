"""Mailbox: the server's ROUTER socket, behind sends that never block."""

from __future__ import annotations

import time
from collections import deque

import zmq

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.security import CurveServer, check_bind
from speculation import wire

BACKLOG_WAIT_S = 0.005
"""How soon a full pipe is tried again."""


class Mailbox:
    """The ROUTER socket. Sending never blocks: what a full pipe does not take waits here, bounded, or is dropped."""

    HIGH_WATER = 32
    BACKLOG = 256

    def __init__(self, config: ServerConfig) -> None:
        """Raises StartError for an address that cannot be bound or keys that cannot be used."""
        check_bind(config.bind, config.keys is not None, config.allow_plain)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve: CurveServer | None = None
        self._backlog: dict[bytes, deque[bytes]] = {}
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            if config.keys is not None:
                self._curve = CurveServer(self._context, config.keys)
                self._curve.protect(self._socket)
            self._socket.router_mandatory = True
            self._socket.sndhwm = self._socket.rcvhwm = self.HIGH_WATER
            self._socket.linger = 200
            self._socket.maxmsgsize = 2 * wire.MAX_MESSAGE_BYTES
            self._socket.heartbeat_ivl, self._socket.heartbeat_timeout = 2000, 6000
            try:
                self._socket.bind(config.bind)
            except zmq.ZMQError as error:
                raise StartError(f"--bind {config.bind}: {error.strerror or error}") from None
        except StartError:
            self.close()
            raise
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.address = endpoint.rstrip(b"\0").decode() if isinstance(endpoint, bytes) else str(endpoint)

    def wait(self, seconds: float) -> None:
        """Return when there is mail, or after `seconds`."""
        if self._backlog:
            seconds = min(seconds, BACKLOG_WAIT_S)
        if seconds >= 0.001:
            self._socket.poll(int(seconds * 1000))
        elif seconds > 0.0:
            time.sleep(seconds)

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return the sender and the frames of the next message; None where there is none."""
        try:
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return peer, frames

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        """Send, or keep for later. Returns False where the peer is gone or takes nothing any more."""
        payload = wire.encode(message)
        backlog = self._backlog.get(peer)
        if backlog is None:
            taken = self._push(peer, payload)
            if taken is None and not droppable:
                self._backlog[peer] = deque([payload])
            return taken is not False
        if droppable:
            return True
        backlog.append(payload)
        return len(backlog) <= self.BACKLOG

    def flush(self) -> None:
        """Send what waits for slow peers, as far as they take it."""
        for peer in list(self._backlog):
            backlog = self._backlog[peer]
            while backlog and (taken := self._push(peer, backlog[0])) is not None:
                if taken:
                    backlog.popleft()
                else:
                    backlog.clear()
            if not backlog:
                del self._backlog[peer]

    def forget(self, peer: bytes) -> None:
        """Drop what waits for a peer."""
        self._backlog.pop(peer, None)

    def close(self) -> None:
        """Send what can be sent within the linger time and free the address."""
        self.flush()
        self._socket.close()
        if self._curve is not None:
            self._curve.stop()
        self._context.term()

    def _push(self, peer: bytes, payload: bytes) -> bool | None:
        """Return True where the message is on its way, None where the pipe is full, False where the peer is gone."""
        try:
            self._socket.send_multipart([peer, payload], zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True
