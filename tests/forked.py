"""Verifier processes for tests of commands: forked from one that has torch and transformers loaded already.

That spares each of them the seconds of its imports. Everything else is as `python -m cloud_verifier` would do it, which
tests/cloud_verifier/test_verifier_process.py starts for what it is about.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from cloud_verifier.__main__ import main

LOADED = ["cloud_verifier.server", "cloud_verifier.engine", "cloud_verifier.self_draft", "cloud_verifier.mailbox"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*LOADED, "speculation.vlm.session", "speculation.vlm.speed", __name__])


class Forked:
    """In place of `subprocess.Popen`, as far as `evaluation.setting.verifier` uses it."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], stderr: IO[str]) -> None:
        assert command[:3] == [sys.executable, "-m", "cloud_verifier"]
        given = command[3:], str(cwd), env, stderr.name
        self._process = FORKS.Process(target=_verifier, args=given, daemon=True)
        self._process.start()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("cloud_verifier", timeout)
        return code


def _verifier(arguments: list[str], folder: str, environment: dict[str, str], log: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    sys.exit(main(arguments))
