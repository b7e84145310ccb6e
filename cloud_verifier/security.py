"""CURVE keys on disk, and no plain text on a public address.

A key folder holds `server.key`, `server.key_secret`, `NAME.key_secret` for the robots and, in `authorized/`, the public
keys of those robots that may connect. A robot gets `server.key` and its own `NAME.key_secret`, nothing else.

The server's key is replaced in two steps. `server_next.key` is made and given to the robots, which take a verifier with
either key from then on; when all have it, it takes the place of `server.key`.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import zmq.auth

from cloud_verifier.start_error import StartError
from speculation.address import check_address

AUTHORIZED = "authorized"
SERVER, NEXT = "server", "server_next"
SECRET = ".key_secret"
Z85_KEY = 40
ROBOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def make_keys(folder: Path, client: str = "client") -> list[Path]:
    """Make the server's certificate, where there is none yet, and one for `client`. Returns the files made.

    Raises StartError for a bad or taken client name, or a folder that cannot be written.
    """
    if not ROBOT_NAME.fullmatch(client) or client in (SERVER, NEXT):
        raise StartError(
            f"--client {client[:80]!r}: use at most 64 letters, digits, - and _, and not {SERVER!r} or {NEXT!r}"
        )
    if (folder / f"{client}{SECRET}").exists():
        raise StartError(f"--keys {folder}: {client!r} has a key already; pass --client NAME for another robot")
    with _writing(folder):
        _make_folders(folder)
        made = [_make_pair(folder, SERVER, folder)] if not (folder / f"{SERVER}{SECRET}").exists() else []
        made.append(_make_pair(folder, client, folder / AUTHORIZED))
    return [path for pair in made for path in pair]


def has_keys(folder: Path, client: str) -> bool:
    """Return whether a client of this name has its keys."""
    return (folder / f"{client}{SECRET}").exists()


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


def client_keys(folder: Path, name: str) -> tuple[bytes, bytes, bytes]:
    """Return the server's public key in a folder, and the pair of the client of this name, z85. Raises StartError."""
    try:
        public, secret = zmq.auth.load_certificate(folder / f"{name}{SECRET}")
    except (OSError, ValueError) as error:
        raise StartError(f"--keys {folder}: {error}; make it with keygen --client {name}") from None
    return public_key(folder).encode(), public, secret or b""


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
