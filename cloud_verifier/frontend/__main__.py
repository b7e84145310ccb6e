"""Runs the frontend's process, between the socket and the engine's process.

`python -m cloud_verifier.frontend SETTINGS` is started by `cloud_verifier.frontend.supervisor`, not by hand.
It holds no state that a robot would miss: whoever was connected connects again and takes its session up.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import socket
import sys
import time
import traceback

from cloud_verifier.frontend.connections import MOST_SESSIONLESS
from cloud_verifier.frontend.messages import (
    ALIVE_S,
    Admit,
    Alive,
    Arrived,
    Close,
    Deliver,
    Failed,
    Forget,
    FrontendSettings,
    Line,
    Lost,
    Opened,
    Revoked,
    ToFrontend,
    given_settings,
)
from cloud_verifier.frontend.pipe import Closed, Pipe
from cloud_verifier.frontend.router_socket import RouterSocket
from cloud_verifier.start_error import StartError

_log = logging.getLogger("cloud_verifier")

KEYS_S = 1.0
"""How often the key folder is looked at."""
OWN_FILES = 48
"""A frontend needs so many descriptors beside its connections, with some to spare."""
MOST_FILES = 1 << 16
"""A frontend asks for so many descriptors, where the hard limit allows it: far above any number of robots."""
LOG_BYTES = 64 << 10
"""While the engine has not read so much, lines for the log are dropped."""


class _PipeHandler(logging.Handler):
    """Hands lines to the engine's process, which has the log."""

    def __init__(self, pipe: Pipe[ToFrontend]) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        if self._pipe.backlog < LOG_BYTES:
            with contextlib.suppress(Closed):
                self._pipe.put(Line(record.levelno, record.getMessage()))


def _serve(router: RouterSocket, pipe: Pipe[ToFrontend]) -> None:
    """Carry mail until the engine closes the frontend. Raises Closed where the engine is gone."""
    known: set[bytes] = set()
    """Names the peers that the engine may send to."""
    alive_at = keys_at = 0.0
    while True:
        full = pipe.backlog > 0
        idle = full or not router.has_mail
        router.wait(ALIVE_S if idle else 0.0, pipe.fileno(), pipe.fileno() if full else None)
        pipe.flush()
        for message in pipe.get():
            if isinstance(message, Deliver):
                taken = router.send(message.peer, message.payload, message.droppable)
                if not taken and message.peer in known:
                    known.discard(message.peer)
                    pipe.put(Lost(message.peer))
            elif isinstance(message, Admit):
                router.admit(message.peer, message.has_session)
            elif isinstance(message, Forget):
                router.forget(message.peer)
            elif isinstance(message, Close):
                return
        router.move()
        now = time.monotonic()
        if now >= keys_at:
            keys_at = now + KEYS_S
            for client in router.check_keys():
                pipe.put(Revoked(client))
        # One message is taken over at a time, so that what waits here waits in fair turns.
        while not pipe.backlog and router.has_mail and (mail := router.receive()) is not None:
            peer, frames = mail
            known.add(peer)
            pipe.put(Arrived(peer, router.client(peer), frames))
        for peer in router.ended():
            if peer in known:
                known.discard(peer)
                pipe.put(Lost(peer))
        if now >= alive_at and not pipe.backlog:
            alive_at = now + ALIVE_S
            dropped, router.dropped = router.dropped, 0
            pipe.put(Alive(dropped))


def main() -> int:
    """Run a frontend with the settings of the one argument, JSON of `FrontendSettings`. Returns the exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the engine ends its frontend itself
        signal.signal(signum, signal.SIG_IGN)
    settings = given_settings(FrontendSettings)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    pipe: Pipe[ToFrontend] = Pipe(socket.socket(fileno=settings.pipe), ToFrontend)
    _log.addHandler(_PipeHandler(pipe))
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        router = RouterSocket(
            settings.address,
            settings.keys,
            settings.listener,
            settings.number,
            settings.bytes_per_s,
            # Half of what may be open is for robots with a session, however many others come.
            min(MOST_SESSIONLESS, max(1, (most - OWN_FILES) // 2)),
        )
    except StartError as error:
        pipe.put(Failed(str(error)))
        return 2
    try:
        pipe.put(Opened(router.address, router.clients))
        _serve(router, pipe)
    except Closed:
        return 1
    except Exception:
        for line in traceback.format_exc().splitlines():
            _log.error("the frontend failed: %s", line)
        return 1
    finally:
        router.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
