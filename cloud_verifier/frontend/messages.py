"""What the frontend and the engine send each other: a closed set of typed messages, encoded as msgpack arrays.

The two ends are always of one version and on one machine, so there is neither a handshake nor a version here.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Opened(Message, tag=1, frozen=True):
    """From the frontend: the socket is open at this address, for these clients; none where there are no keys."""

    address: str
    clients: list[str]


class Failed(Message, tag=2, frozen=True):
    """From the frontend: the socket cannot be opened, for this reason. The frontend ends."""

    reason: str


class Arrived(Message, tag=3, frozen=True):
    """From the frontend: the first frames of a peer's message. `client` names its key; empty: there are no keys."""

    peer: bytes
    client: str
    frames: list[bytes]


class Lost(Message, tag=4, frozen=True):
    """From the frontend: this peer is gone, or takes nothing any more."""

    peer: bytes


class Revoked(Message, tag=5, frozen=True):
    """From the frontend: this client's key is not authorized any more, or is another one now."""

    client: str


class Line(Message, tag=6, frozen=True):
    """From the frontend: a line for the log; `level` as in `logging`."""

    level: int
    text: str


class Alive(Message, tag=7, frozen=True):
    """From the frontend, every `ALIVE_S`: how many connections it has, and how many messages found a queue full."""

    connections: int
    dropped: int


class Deliver(Message, tag=1, frozen=True):
    """To the frontend: send this payload. `droppable`: or drop it where the peer does not take what was sent before."""

    peer: bytes
    payload: bytes
    droppable: bool


class Admit(Message, tag=2, frozen=True):
    """To the frontend: whether this peer has a session."""

    peer: bytes
    has_session: bool


class Forget(Message, tag=3, frozen=True):
    """To the frontend: drop what waits for this peer."""

    peer: bytes


class Close(Message, tag=4, frozen=True):
    """To the frontend: send what can be sent soon, and end."""


FromFrontend: TypeAlias = Opened | Failed | Arrived | Lost | Revoked | Line | Alive
ToFrontend: TypeAlias = Deliver | Admit | Forget | Close

ALIVE_S = 0.5


class FrontendSettings(msgspec.Struct, frozen=True):
    """What a frontend's process is started with. Descriptors are inherited."""

    pipe: int
    """Descriptor of its end of the socket pair."""
    address: str
    listener: int | None
    """Descriptor of a socket that listens at `address`; None: the frontend binds it."""
    keys: str | None
    """Folder of CURVE keys."""
    number: int
    """How many frontends there were before, so that no two of them give a peer one name."""
    bytes_per_s: float
    """Of one client; beyond a multiple of it the connection is ended. 0: any."""
