"""CURVE: keys on disk, who may connect, and no plain text on a public address.

A key folder holds `server.key`, `server.key_secret`, `NAME.key_secret` for the robots and, in `authorized/`, the public
keys of those robots that may connect. A robot gets `server.key` and its own `NAME.key_secret`, nothing else.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from cloud_verifier.config import StartError
from speculation.address import check_address

AUTHORIZED = "authorized"
Z85_KEY = 40
_log = logging.getLogger("cloud_verifier")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def make_keys(folder: Path, client: str = "client") -> list[Path]:
    """Make the server's certificate, where there is none yet, and one for `client`. Returns the files made.

    Raises StartError for a bad or taken client name, or a folder that cannot be written.
    """
    if not _NAME.fullmatch(client) or client == "server":
        raise StartError(f"--client {client!r}: use letters, digits, - and _, and not 'server'")
    if (folder / f"{client}.key_secret").exists():
        raise StartError(f"--keys {folder}: {client!r} has a key already; pass --client NAME for another robot")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / AUTHORIZED).mkdir(exist_ok=True)
        made = [_make_pair(folder, "server", folder)] if not (folder / "server.key_secret").exists() else []
        made.append(_make_pair(folder, client, folder / AUTHORIZED))
    except OSError as error:
        raise StartError(f"--keys {folder}: {error.strerror or error}") from None
    return [path for pair in made for path in pair]


def _make_pair(folder: Path, name: str, public_folder: Path) -> tuple[Path, Path]:
    public, secret = zmq.auth.create_certificates(folder, name)
    Path(secret).chmod(0o600)
    return Path(public).rename(public_folder / f"{name}.key"), Path(secret)


def check_bind(address: str, encrypted: bool, allow_plain: bool) -> None:
    """Raise StartError for an address that is none, or where plain text would leave this machine unasked."""
    try:
        check_address(address, encrypted, allow_plain, ("--keys DIR", "--allow-plain"), any_port=True)
    except ValueError as error:
        raise StartError(f"--bind {error}") from None


def public_key(folder: Path | None) -> str:
    """Return the server's public key (z85) in a key folder; empty for no folder. Raises StartError."""
    if folder is None:
        return ""
    try:
        public, _ = zmq.auth.load_certificate(folder / "server.key")
    except (OSError, ValueError) as error:
        raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
    return public.decode("ascii")


class AuthorizedKeys:
    """The public keys in a folder, read again for every connection, so that a robot can be added while serving."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this (z85) key may connect. Called in the authenticator's thread."""
        try:
            allowed = key in zmq.auth.load_certificates(self.folder)
        except (OSError, ValueError) as error:
            _log.warning("refused a client: %s", error)
            return False
        if not allowed:
            _log.warning("refused a client: its key %s is not in %s", key.decode(), self.folder)
        return allowed


class CurveServer:
    """Encrypts one server socket and accepts only clients whose public key is in `authorized/`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        """Raises StartError for keys that are missing or unreadable."""
        secret_file = folder / "server.key_secret"
        try:
            self._public, secret = zmq.auth.load_certificate(secret_file)
            clients = zmq.auth.load_certificates(folder / AUTHORIZED)
        except (OSError, ValueError) as error:
            raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
        if secret is None or len(secret) != Z85_KEY or len(self._public) != Z85_KEY:
            raise StartError(f"--keys {folder}: {secret_file.name} holds no pair of {Z85_KEY}-character keys")
        if not clients:
            raise StartError(f"--keys {folder}: {AUTHORIZED}/ holds no client key, so nobody could connect")
        self._secret = secret
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=AuthorizedKeys(folder / AUTHORIZED))

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` a CURVE server; call it before bind."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_server = True

    def stop(self) -> None:
        """Accept no more clients."""
        self._authenticator.stop()
