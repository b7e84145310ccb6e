"""Processes for tests: forked from one that has torch, transformers and rclpy loaded already.

That spares each of them the seconds of its imports. All else is as with `python -m MODULE`. Tests that are about a
process itself, as tests/cloud_verifier/test_verifier_process.py, start real ones.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["cloud_verifier.server", "cloud_verifier.engine", "cloud_verifier.server_draft.drafting",
     "cloud_verifier.frontend.supervisor", "edge_drafter.decoder", "speculation.vlm.session", "speculation.vlm.speed",
     "spec_vlm_nav.nodes.managed", "spec_vlm_nav.nodes.inputs", "spec_vlm_nav.nodes.goal_client", "unitree_api.msg",
     __name__]
)  # fmt: skip


@functools.cache
def _loaded() -> None:
    """Wait until the process that others are forked from has loaded everything: no test's limit is for that."""
    first = FORKS.Process(target=int, daemon=True)
    first.start()
    first.join()


class Forked:
    """In place of `subprocess.Popen`. stderr: a file, PIPE, or STDOUT; stdout: the same file, or PIPE with STDOUT."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        stderr: IO[str] | int,
        stdout: IO[str] | int = subprocess.DEVNULL,
        env: Mapping[str, str] = os.environ,
        preexec_fn: Callable[[], None] | None = None,
        **_: Any,
    ) -> None:
        assert command[:2] == [sys.executable, "-m"]
        _loaded()
        joined = stdout is stderr or stderr == subprocess.STDOUT
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        if isinstance(stderr, int):
            assert subprocess.PIPE in (stderr, stdout)
            reader, writer = os.pipe()
            pipe = os.fdopen(reader, errors="replace")
            self.stdout, self.stderr = (pipe, None) if joined else (None, pipe)
        else:
            writer = os.dup(stderr.fileno())
        with Connection(writer, readable=False) as log:  # a form in which a file descriptor reaches another process
            given = list(command[2:]), str(cwd), dict(env), log, joined, preexec_fn
            self._process = FORKS.Process(target=_run, args=given, daemon=True)
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
        """Send a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(sys.executable, timeout or 0.0)
        return code


def run(command: Sequence[str], cwd: Path) -> tuple[int, str]:
    """Return the exit code and standard error of a process that ends within two minutes."""
    process = Forked(command, cwd, subprocess.PIPE)
    code = process.wait(120.0)
    assert process.stderr is not None
    with process.stderr as pipe:
        return code, pipe.read()


def popen(command: Sequence[str], **how: Any) -> Forked | subprocess.Popen[str]:
    """Start a process, by forking where it runs a module."""
    if command[:2] == [sys.executable, "-m"]:
        return Forked(command, **how)
    return subprocess.Popen(command, **how)


SUBPROCESS = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
"""In place of the module `subprocess` in code that starts processes."""


def _run(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    log: Connection,
    joined: bool,
    first: Callable[[], None] | None,
) -> None:
    """Do what `python -m` does with these words."""
    if first is not None:
        first()
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(log.fileno(), sys.stderr.fileno())
    os.dup2(log.fileno() if joined else os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    log.close()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
