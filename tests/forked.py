"""Verifier processes for tests: forked from one that has torch and transformers loaded already.

That spares each of them the seconds of its imports. All else is as with `python -m cloud_verifier`, which
tests/cloud_verifier/test_verifier_process.py starts, since it is about that.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from cloud_verifier.__main__ import main

LOADED = ("cloud_verifier.server", "cloud_verifier.engine", "cloud_verifier.self_draft", "cloud_verifier.mailbox")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*LOADED, "speculation.vlm.session", "speculation.vlm.speed", __name__])


class Forked:
    """A verifier's process in place of a `subprocess.Popen`. stderr: a file, or PIPE for one to read."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], stderr: IO[str] | int) -> None:
        assert command[:3] == [sys.executable, "-m", "cloud_verifier"]
        self.stderr: IO[str] | None = None
        if isinstance(stderr, int):
            assert stderr == subprocess.PIPE
            reader, writer = os.pipe()
            self.stderr = os.fdopen(reader)
        else:
            writer = os.dup(stderr.fileno())
        with Connection(writer, readable=False) as log:  # what a file descriptor crosses to another process in
            self._process = FORKS.Process(target=_verifier, args=(command[3:], str(cwd), env, log), daemon=True)
            self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("cloud_verifier", timeout)
        return code


def _verifier(arguments: list[str], folder: str, environment: dict[str, str], log: Connection) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(log.fileno(), sys.stderr.fileno())
    log.close()
    sys.exit(main(arguments))
