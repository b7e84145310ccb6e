"""Messages between frontend and engine: a closed set of types, encoded as msgpack arrays.

The two ends are always of one version and on one machine, so there is neither a handshake nor a version here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages."""


# --- from the frontend


class Opened(Message, tag=1, frozen=True):
    """The socket is open for these clients; there are none where there are no keys."""

    address: str
    clients: list[str]


class Failed(Message, tag=2, frozen=True):
    """The socket cannot be opened, for this reason, and the frontend ends."""

    reason: str


class Arrived(Message, tag=3, frozen=True):
    """Brings the first frames of a peer's message."""

    peer: bytes
    client: str
    """Names the peer's key; empty where there are no keys."""
    frames: list[bytes]


class Lost(Message, tag=4, frozen=True):
    """A peer is gone, or takes nothing any more."""

    peer: bytes


class Revoked(Message, tag=5, frozen=True):
    """A client's key is not authorized any more, or is another one now."""

    client: str


class Line(Message, tag=6, frozen=True):
    """Brings a line for the log."""

    level: int
    text: str


class Alive(Message, tag=7, frozen=True):
    """The frontend lives; it sends this every `ALIVE_S`, with how many messages since found their peer's queue full."""

    dropped: int


# --- to the frontend


class Deliver(Message, tag=1, frozen=True):
    """Asks to send a payload, or to drop it, if it is `droppable`, where the peer did not take what was sent before."""

    peer: bytes
    payload: bytes
    droppable: bool


class Admit(Message, tag=2, frozen=True):
    """The engine lets a peer in that has a session, or takes that back."""

    peer: bytes
    has_session: bool


class Forget(Message, tag=3, frozen=True):
    """Asks to drop what waits for a peer."""

    peer: bytes


class Close(Message, tag=4, frozen=True):
    """Asks to send what can be sent soon, and to end."""


FromFrontend: TypeAlias = Opened | Failed | Arrived | Lost | Revoked | Line | Alive
ToFrontend: TypeAlias = Deliver | Admit | Forget | Close

ALIVE_S = 0.5


class FrontendSettings(msgspec.Struct, frozen=True):
    """These settings are what a frontend's process opens. Descriptors are inherited."""

    pipe: int
    """The descriptor of its end of the socket pair."""
    address: str
    listener: int | None
    """The descriptor of a socket that listens at `address`; None: the frontend binds it."""
    keys: Path | None
    """The folder of CURVE keys."""
    number: int
    """Counts the frontends that there were before, so that no two of them give a peer one name."""
    bytes_per_s: float
    """What one client may send; beyond a multiple of it its connection is ended. 0: any."""


def given_settings(kind: type[T]) -> T:
    """Return the settings with which `supervisor.start_process` has started this process."""
    return msgspec.json.decode(sys.argv[1], type=kind, dec_hook=lambda path, text: path(text))
