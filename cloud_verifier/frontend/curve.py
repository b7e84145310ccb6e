"""Encrypts the socket with CURVE and accepts those whose key is authorized."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import zmq
import zmq.auth

from cloud_verifier.limits import Rate
from cloud_verifier.security import AUTHORIZED, ROBOT_NAME, SECRET, SERVER, Z85_KEY, load_server_key
from cloud_verifier.start_error import StartError

KEY = ".key"
REFUSED_S = 60.0
"""A key that is refused again and again is named in the log every so many seconds."""
REFUSED_PER_S, REFUSED_AT_ONCE = 1.0, 10
"""All lines about refused keys together: whoever is no robot may come with another key each time."""
_log = logging.getLogger("cloud_verifier")


def file_stamp(file: Path | os.DirEntry[str]) -> tuple[int, int]:
    """Return what changes with a file's content or mode; zeros for a file that is not to be had."""
    try:
        seen = file.stat()
    except OSError:
        return 0, 0
    return seen.st_ctime_ns, seen.st_size


class AuthorizedKeys:
    """Knows the public keys in a folder and whose they are; robots may come and go while the verifier serves."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError for no such folder."""
        self.folder = folder
        self._stamps: dict[str, tuple[int, int]] = {}
        self._keys: dict[str, bytes] = {}
        """The keys by name, empty for a file without one."""
        self._names: dict[bytes, str] = {}
        self.gone: list[str] = []
        """The names whose keys are no more; whoever reads it empties it."""
        self.refresh()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """Return the names of those whose keys there are."""
        return list(self._names.values())

    def name(self, key: bytes) -> str:
        """Return whose z85 key this is; empty where it is nobody's."""
        return self._names.get(key, "")

    def __contains__(self, name: str) -> bool:
        return bool(self._keys.get(name))

    def refresh(self) -> None:
        """Read the files that have changed. Raises OSError.

        A file without a key is left out, with one line in the log; the others count.
        """
        with os.scandir(self.folder) as entries:
            stamps = {each.name[: -len(KEY)]: file_stamp(each) for each in entries if each.name.endswith(KEY)}
        before = self._keys
        self._keys = {
            name: before[name] if self._stamps.get(name) == stamp else self._read(name)
            for name, stamp in stamps.items()
        }
        self._stamps = stamps
        self.gone += [name for name, key in before.items() if key and self._keys.get(name) != key]
        self._names = {key: name for name, key in sorted(self._keys.items(), reverse=True) if key}

    def _read(self, name: str) -> bytes:
        path = self.folder / f"{name}{KEY}"
        try:
            if not ROBOT_NAME.fullmatch(name):
                raise ValueError("a robot's name has letters, digits, - and _ only")
            key, _ = zmq.auth.load_certificate(path)
            if len(key) != Z85_KEY:
                raise ValueError(f"its public key has {len(key)} characters, not {Z85_KEY}")
        except (OSError, ValueError) as error:
            _log.warning("left out the key file %s, so its robot cannot connect: %s", path, error)
            return b""
        return key


class CurveServer(zmq.auth.Authenticator):
    """Encrypts one server socket, and accepts clients whose public key is in `authorized/`, by its name there.

    ZeroMQ asks at `zap_socket` who may connect; `answer` when it can be read.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        """Raises StartError for keys that are missing or unreadable."""
        super().__init__(context)
        self._folder = folder
        self._pair = load_server_key(folder)
        try:
            self.keys = AuthorizedKeys(folder / AUTHORIZED)
        except OSError as error:
            raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
        if not self.keys:
            raise StartError(f"--keys {folder}: {AUTHORIZED}/ holds no client key, so nobody could connect")
        self._protecting = self._pair
        self._changed = file_stamp(folder / f"{SERVER}{SECRET}")
        self._complaint = ""
        self._lines = Rate.counted(1.0 / REFUSED_S, 1)
        self._all_lines = Rate.counted(REFUSED_PER_S, REFUSED_AT_ONCE)
        self.configure_curve_callback("*", credentials_provider=self)
        self.start()

    def answer(self) -> None:
        """Answer ZeroMQ's questions about those that want to connect."""
        while self.zap_socket.poll(0):
            question = self.handle_zap_message(self.zap_socket.recv_multipart())
            with contextlib.suppress(StopIteration):  # a coroutine that waits for nothing, since `callback` is none
                question.send(None)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this z85 key may connect."""
        if not self.keys.name(key):
            with contextlib.suppress(OSError):  # it may have been added this very second
                self.keys.refresh()
        now = time.monotonic()
        if not self.keys.name(key) and self._lines.take(key, now) and self._all_lines.take(None, now):
            _log.warning("refused a client: its key %s is not in %s", key.decode(), self.keys.folder)
        return bool(self.keys.name(key))

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name by which ZeroMQ knows a client of this key."""
        return self.keys.name(zmq.utils.z85.encode(client_public_key))

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` a CURVE server; call it before bind."""
        self._protecting = self._pair
        socket.curve_publickey, socket.curve_secretkey = self._pair
        socket.curve_server = True

    def refresh(self) -> list[str]:
        """Take up what has changed on disk; return the clients whose keys are no more.

        What cannot be read changes nothing but a line in the log.
        """
        try:
            self.keys.refresh()
        except OSError as error:
            self._complain(f"who may connect stays as it was: {error}")
        stamp = file_stamp(self._folder / f"{SERVER}{SECRET}")
        if stamp != self._changed:
            self._changed = stamp
            try:
                self._pair = load_server_key(self._folder)
            except StartError as error:
                self._complain(f"the server's key stays as it was: {error}")
        gone, self.keys.gone = self.keys.gone, []
        return gone

    def renewed(self) -> bool:
        """Whether the server's key has changed since `protect`."""
        return self._pair != self._protecting

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            _log.warning("%s", text)
        self._complaint = text
