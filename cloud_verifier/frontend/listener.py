"""Listens in the engine's process, so that the address stays taken when the frontend ends.

Robots that connect while there is no frontend wait in the kernel's queue for the next one, and are not refused.
"""

from __future__ import annotations

import errno
import os

import zmq
from zmq.utils.monitor import parse_monitor_message

from cloud_verifier.start_error import StartError


def listen(address: str) -> tuple[int | None, str]:
    """Return the descriptor of a socket that listens at a ZeroMQ address, and the address with its port.

    No descriptor for `ipc://`, which every frontend binds anew. Raises StartError for an address that cannot be bound.
    """
    if not address.startswith("tcp://"):
        return None, address
    # ZeroMQ resolves wildcards, names and interfaces as the frontend would; nothing is received here.
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    monitor = socket.get_monitor_socket(zmq.EVENT_LISTENING)
    try:
        socket.ipv6 = "[" in address
        socket.bind(address)
        descriptor = os.dup(int(parse_monitor_message(monitor.recv_multipart())["value"]))
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return descriptor, endpoint.rstrip(b"\0").decode()
    except zmq.ZMQError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            reason = "no interface of this machine has this name or address"
        raise StartError(f"--bind {address}: {reason}") from None
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)
        context.term()
