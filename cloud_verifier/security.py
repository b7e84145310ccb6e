"""CURVE: keys on disk, who may connect, and no plain text on a public address.

A key folder holds `server.key`, `server.key_secret`, `NAME.key_secret` for the robots and, in `authorized/`, the public
keys of those robots that may connect. A robot gets `server.key` and its own `NAME.key_secret`, nothing else.

The server's key is replaced in two steps. `server_next.key` is made and given to the robots, which take a verifier with
either key from then on; when all have it, it takes the place of `server.key`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import zmq
import zmq.auth

from cloud_verifier.limits import Allowance
from cloud_verifier.start_error import StartError
from speculation.address import check_address

AUTHORIZED = "authorized"
SERVER, NEXT = "server", "server_next"
SECRET = ".key_secret"
Z85_KEY = 40
REFUSED_S = 60.0
"""A key that is refused again and again is named in the log every so many seconds."""
REFUSED_PER_S, REFUSED_AT_ONCE = 1.0, 10
"""Lines about refused keys, all together: whoever is no robot may come with another key each time."""
_log = logging.getLogger("cloud_verifier")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def make_keys(folder: Path, client: str = "client") -> list[Path]:
    """Make the server's certificate, where there is none yet, and one for `client`. Returns the files made.

    Raises StartError for a bad or taken client name, or a folder that cannot be written.
    """
    if not _NAME.fullmatch(client) or client in (SERVER, NEXT):
        raise StartError(f"--client {client!r}: use letters, digits, - and _, and not {SERVER!r} or {NEXT!r}")
    if (folder / f"{client}{SECRET}").exists():
        raise StartError(f"--keys {folder}: {client!r} has a key already; pass --client NAME for another robot")
    with _writing(folder):
        _make_folders(folder)
        made = [_make_pair(folder, SERVER, folder)] if not (folder / f"{SERVER}{SECRET}").exists() else []
        made.append(_make_pair(folder, client, folder / AUTHORIZED))
    return [path for pair in made for path in pair]


def purpose(path: Path) -> str:
    """Return what a file that was made here is for, and where it belongs."""
    robot = path.name.partition(".")[0]
    if robot == SERVER:
        secret, public = "the verifier's secret; it stays here, no robot gets it", "copy it to every robot"
    elif robot == NEXT:
        secret, public = "the verifier's next secret; it stays here, no robot gets it", "copy it to every robot"
    else:
        secret = f"secret of the robot {robot}; copy it to that robot alone, beside {SERVER}.key"
        public = f"lets the robot {robot} in; it stays here"
    return secret if path.name.endswith(SECRET) else public


def make_next_key(folder: Path) -> list[Path]:
    """Make the certificate that is to replace the server's. Returns the files made; the first is for the robots.

    Raises StartError where there is one already, where there is no server's key, or where the folder is not writable.
    """
    _need_secret(folder, SERVER)
    if (folder / f"{NEXT}{SECRET}").exists():
        raise StartError(
            f"--keys {folder}: {NEXT}.key exists already; give it to the robots, then run keygen with --switch-server"
        )
    with _writing(folder):
        return list(_make_pair(folder, NEXT, folder))


def switch_keys(folder: Path) -> list[Path]:
    """Let the next certificate be the server's; a verifier that runs takes it up. Returns the files that changed.

    Raises StartError where there is no next certificate, or where the folder is not writable.
    """
    _need_secret(folder, NEXT)
    changed = [folder / f"{SERVER}.key", folder / f"{SERVER}{SECRET}"]
    with _writing(folder):
        for path in changed:  # the secret file, which holds both keys and which the verifier reads, comes last
            with contextlib.suppress(FileNotFoundError):  # the first one is there already if that was interrupted
                (folder / path.name.replace(SERVER, NEXT)).replace(path)
    return changed


def _need_secret(folder: Path, name: str) -> None:
    if not (folder / f"{name}{SECRET}").exists():
        flag = "--next-server" if name == NEXT else "no other flag"
        raise StartError(f"--keys {folder}: {name}{SECRET} is missing; make it with keygen and {flag}")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(f"--keys {folder}: {error.strerror or error}") from None


def _make_folders(folder: Path) -> None:
    """Make a key folder that is its owner's alone, whatever the umask."""
    found = folder.is_dir() and any(folder.iterdir()) and not (folder / f"{SERVER}{SECRET}").exists()
    for each in (folder, folder / AUTHORIZED):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if each != folder or not found:  # a folder with other things in it stays as it is
            each.chmod(0o700)


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
        public, _ = zmq.auth.load_certificate(folder / f"{SERVER}.key")
    except (OSError, ValueError) as error:
        raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
    return public.decode("ascii")


def load_server_key(folder: Path) -> tuple[bytes, bytes]:
    """Return the server's public and secret key, z85.

    Raises StartError for keys that are missing, unreadable, or readable by others; the text has the command that helps.
    """
    path = folder / f"{SERVER}{SECRET}"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        public, secret = zmq.auth.load_certificate(path)
        open_folder = next((each for each in (folder, folder / AUTHORIZED) if each.stat().st_mode & stat.S_IWOTH), None)
    except (OSError, ValueError) as error:
        raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StartError(f"--keys {folder}: others may read {path.name} (mode {mode:04o}); run: chmod 600 {path}")
    if open_folder is not None:
        raise StartError(f"--keys {folder}: anybody may add keys to {open_folder}; run: chmod 700 {open_folder}")
    if secret is None or len(secret) != Z85_KEY or len(public) != Z85_KEY:
        raise StartError(f"--keys {folder}: {path.name} holds no pair of {Z85_KEY}-character keys")
    return public, secret


def _stamp(file: Path | os.DirEntry[str]) -> tuple[int, int]:
    """Return what is another one when a file's content or mode has changed; zeros for a file that is not to be had.

    Its mode too: whoever lets a key be read expects that it is.
    """
    try:
        seen = file.stat()
    except OSError:
        return 0, 0
    return seen.st_ctime_ns, seen.st_size


class AuthorizedKeys:
    """The public keys in a folder and whose they are. `refresh` reads what has changed, so that robots may come and go
    while the verifier serves."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        """quiet: whether files that are left out stay without a line in the log. Raises OSError for no such folder."""
        self.folder, self._quiet = folder, quiet
        self._files: dict[str, tuple[int, int, bytes]] = {}
        """By name: when the file or its mode was changed, its size, and its key; an empty one where it has none."""
        self._names: dict[bytes, str] = {}
        self.gone: list[str] = []
        """The names whose keys are no more; whoever reads it empties it."""
        self.refresh()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """Whose keys there are."""
        return list(self._names.values())

    def name(self, key: bytes) -> str:
        """Return whose z85 key this is; empty where it is nobody's."""
        return self._names.get(key, "")

    def __contains__(self, name: str) -> bool:
        return bool(self._files.get(name, (0, 0, b""))[2])

    def refresh(self) -> None:
        """Read the files that have changed. Raises OSError.

        A file without a key is left out, with one line in the log; the others count.
        """
        found: dict[str, tuple[int, int, bytes]] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".key"):
                    continue
                name = entry.name.removesuffix(".key")
                stamp = _stamp(entry)
                known = self._files.get(name)
                same = known is not None and known[:2] == stamp
                found[name] = (*stamp, known[2] if known is not None and same else self._read(name))
        for name, (*_, key) in self._files.items():
            if key and found.get(name, (0, 0, b""))[2] != key:
                self.gone.append(name)
        self._files = found
        self._names = {key: name for name, (*_, key) in sorted(found.items(), reverse=True) if key}

    def _read(self, name: str) -> bytes:
        path = self.folder / f"{name}.key"
        try:
            if not _NAME.fullmatch(name):
                raise ValueError("a robot's name has letters, digits, - and _ only")
            key, _ = zmq.auth.load_certificate(path)
            if len(key) != Z85_KEY:
                raise ValueError(f"its public key has {len(key)} characters, not {Z85_KEY}")
        except (OSError, ValueError) as error:
            if not self._quiet:
                _log.warning("left out the key file %s, so its robot cannot connect: %s", path, error)
            return b""
        return key


class _Authenticator(zmq.auth.Authenticator):
    """ZeroMQ's authenticator, which calls an accepted client by the name of its key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: AuthorizedKeys) -> None:
        super().__init__(context)
        self.configure_curve_callback("*", credentials_provider=self)
        self.keys = keys
        self._lines = Allowance(1.0 / REFUSED_S, 1)
        self._all_lines = Allowance(REFUSED_PER_S, REFUSED_AT_ONCE)

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
        """See `zmq.auth.Authenticator`."""
        return self.keys.name(zmq.utils.z85.encode(client_public_key))


def open_keys(folder: Path, quiet: bool = False) -> tuple[tuple[bytes, bytes], AuthorizedKeys]:
    """Return the server's public and secret key, and who may connect. Raises StartError for what nobody could use.

    quiet: as `AuthorizedKeys` has it.
    """
    pair = load_server_key(folder)
    try:
        authorized = AuthorizedKeys(folder / AUTHORIZED, quiet)
    except OSError as error:
        raise StartError(f"--keys {folder}: {error}; make keys with keygen --keys {folder}") from None
    if not authorized:
        raise StartError(f"--keys {folder}: {AUTHORIZED}/ holds no client key, so nobody could connect")
    return pair, authorized


class CurveServer:
    """Encrypts one server socket and accepts only clients whose public key is in `authorized/`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        """Raises StartError for keys that are missing or unreadable."""
        self._folder = folder
        self._pair, self._keys = open_keys(folder)
        self._protecting = self._pair
        self._changed = _stamp(folder / f"{SERVER}{SECRET}")
        self._complaint = ""
        self._authenticator = _Authenticator(context, self._keys)
        self._authenticator.start()

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """Where ZeroMQ asks who may connect; `answer` when it can be read."""
        return self._authenticator.zap_socket

    def answer(self) -> None:
        """Answer ZeroMQ's questions about those that want to connect."""
        while self.socket.poll(0):
            question = self._authenticator.handle_zap_message(self.socket.recv_multipart())
            with contextlib.suppress(StopIteration):  # a coroutine that waits for nothing, since `callback` is none
                question.send(None)

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
            self._keys.refresh()
        except OSError as error:
            self._complain(f"who may connect stays as it was: {error}")
        stamp = _stamp(self._folder / f"{SERVER}{SECRET}")
        if stamp != self._changed:
            self._changed = stamp
            try:
                self._pair = load_server_key(self._folder)
            except StartError as error:
                self._complain(f"the server's key stays as it was: {error}")
        gone, self._keys.gone = self._keys.gone, []
        return gone

    def knows(self, client: str) -> bool:
        """Whether a client of this name may be connected."""
        return client in self._keys

    @property
    def clients(self) -> list[str]:
        """The names of those that may connect."""
        return self._keys.names

    def renewed(self) -> bool:
        """Whether the server's key has changed since `protect`."""
        return self._pair != self._protecting

    def stop(self) -> None:
        """Accept no more clients."""
        self._authenticator.stop()

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            _log.warning("%s", text)
        self._complaint = text
