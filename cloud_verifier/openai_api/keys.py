"""API keys in a file: a line of NAME KEY each, where a # begins a comment.

With CURVE keys NAME is also that of a robot's key, by which the verifier knows whose a request is.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from pathlib import Path

from cloud_verifier.frontend.curve import file_stamp
from cloud_verifier.security import AUTHORIZED, ROBOT_NAME, SECRET
from cloud_verifier.start_error import StartError

_log = logging.getLogger("cloud_verifier")

LEAST_CHARS, MOST_CHARS = 20, 200
MOST_BYTES = 1 << 20
_KEY = re.compile(rf"[!-~]{{{LEAST_CHARS},{MOST_CHARS}}}")


class ApiKeys:
    """Knows whose an API key is. `refresh` takes up what has changed in the file."""

    def __init__(self, file: Path, folder: Path | None) -> None:
        """`folder` has the CURVE keys. Raises StartError, naming file and line, for keys that cannot be used."""
        self._file, self._folder = file, folder
        self._stamp = file_stamp(file)
        self._names = self._read()
        if not self._names:
            raise StartError(f"--api-keys {file}: it holds no key; make one with keygen --api-keys {file}")

    def name(self, key: str) -> str:
        """Return whose key this is; empty where it is nobody's. It takes as long for one as for another."""
        found, given = "", _digest(key)
        for digest, name in self._names.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found

    def refresh(self) -> set[str]:
        """Read the file where it has changed; return the names whose keys are no more, or are others.

        One that cannot be used changes nothing but a line in the log; one without keys lets nobody in.
        """
        stamp, before = file_stamp(self._file), self._names
        if stamp == self._stamp:
            return set()
        self._stamp = stamp
        try:
            self._names = self._read()
        except StartError as error:
            _log.warning("who may use the chat API stays as it was: %s", error)
        return {name for digest, name in before.items() if digest not in self._names}

    def _read(self) -> dict[bytes, str]:
        names: dict[bytes, str] = {}
        for number, line in enumerate(_text(self._file).splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            problem = self._problem(words, names)
            if problem:
                raise StartError(f"--api-keys {self._file}, line {number}: {problem}")
            names[_digest(words[1])] = words[0]
        return names

    def _problem(self, words: list[str], names: dict[bytes, str]) -> str:
        if len(words) != 2 or not ROBOT_NAME.fullmatch(words[0]):
            return "give a name of letters, digits, - and _, and behind a space its key"
        name, key = words
        if not _KEY.fullmatch(key):
            return f"the key of {name} has not {LEAST_CHARS} to {MOST_CHARS} printable ASCII characters"
        if _digest(key) in names or name in names.values():
            return f"{name}, or its key, stands there twice"
        folder = self._folder
        paths = [] if folder is None else [folder / f"{name}{SECRET}", folder / AUTHORIZED / f"{name}.key"]
        missing = next((path for path in paths if not path.exists()), None)
        return f"{missing} is missing; make it with keygen --keys {folder} --client {name}" if missing else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _text(file: Path) -> str:
    try:
        if file.is_dir():
            raise StartError(f"--api-keys {file}: it is a folder; name a file")
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise StartError(f"--api-keys {file}: others may read it (mode {mode:04o}); run: chmod 600 {file}")
        with file.open(encoding="utf-8-sig") as text:  # some editors begin a file with a mark of its encoding
            return text.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"--api-keys {file}: {reason}") from None


def add_key(file: Path, name: str) -> str:
    """Append a new key of `name` to a file, which is made where it is missing, and return the key. Raises StartError.

    The file is its owner's alone from the start.
    """
    if not ROBOT_NAME.fullmatch(name):
        raise StartError(f"--client {name[:80]!r}: use at most 64 letters, digits, - and _")
    before = _text(file) if file.exists() else ""
    if any(line.split()[:1] == [name] for line in before.splitlines()):
        raise StartError(f"--api-keys {file}: {name!r} has a key already; remove its line for another one")
    key = f"sk-{secrets.token_urlsafe(32)}"
    try:
        with open(file, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as text:
            text.write(f"{name} {key}\n" if before[-1:] in ("", "\n") else f"\n{name} {key}\n")
    except OSError as error:
        raise StartError(f"--api-keys {file}: {error.strerror or error}") from None
    return key
