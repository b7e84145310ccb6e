"""Starts a process graph where `ros2 launch` is missing: prefixed output, readiness, and an end without leftovers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from spec_vlm_nav.graph import GRAPHS, PACKAGE, PROJECT
from spec_vlm_nav.preflight import check
from spec_vlm_nav.process_graph import MANAGER, PARAMS_FILE, RESPAWN_S, CommandSpec, Graph, NodeSpec, RespawnPolicy

SOURCE = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).resolve().parent / "config"
POLL_S = 0.05
ERRORS = ("[ERROR]", "[FATAL]", "error:", "Error:")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PORTS = range(20_000, 30_000)
TERMINATE_S, INTERRUPT_S = 5.0, 3.0
READ_S = 1.0
"""How long the last output of a process that has ended is waited for; its own children may hold the pipe open."""
Line = Callable[[str, str], None]


class StartError(RuntimeError):
    """A process could not start or ended before it was ready; the text names it, with its last line of output."""


def arguments_of(graph: Graph, process: NodeSpec | CommandSpec, given: Mapping[str, str]) -> list[str]:
    """Return the command line of a process of `graph`. Raises ValueError for arguments that cannot be used."""
    values = graph.values(given)
    if isinstance(process, CommandSpec):
        return with_this_python(graph.command(process, values))
    # By its module, with this interpreter: that needs no installed script.
    words = [sys.executable, "-m", process.module or f"{PACKAGE}.nodes.{process.name}"]
    words += ["--ros-args", "--params-file", str(CONFIG / process.config)]
    if values.get(PARAMS_FILE):
        words += ["--params-file", values[PARAMS_FILE]]
    for name, value in graph.given(process, values).items():
        # JSON is YAML whose text stays text, such as "1e3" or "".
        words += ["-p", f"{name}:={json.dumps(value, ensure_ascii=False)}"]
    for name, topic in graph.remaps(process, values):
        words += ["-r", f"{name}:={topic}"]
    if values.get("namespace"):
        words += ["-r", f"__ns:=/{values['namespace'].lstrip('/')}"]
    return [*words, "--log-level", values.get("log_level", "info")]


def _end_with_parent() -> None:
    """Have the kernel end this process with its parent, even where that is killed and can end nobody."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def with_this_python(command: list[str]) -> list[str]:
    """Return `command` with this interpreter for python3, of which the one on PATH may lack the project's libraries."""
    return [sys.executable, *command[1:]] if command[0] == "python3" else command


@dataclass
class Running:
    """One started process."""

    spec: NodeSpec | CommandSpec
    process: subprocess.Popen[str]
    policy: RespawnPolicy
    last_line: str = ""
    last_error: str = ""
    """The last line that a logger, or a program that gave up, marks as an error."""
    again_at: float | None = None
    """When it is started again, after it died."""
    reader: threading.Thread | None = None

    def read_out(self) -> None:
        """Wait until all that the process wrote was taken, once it has ended."""
        if self.reader is not None:
            self.reader.join(READ_S)


class Runner:
    """Starts processes in their order and ends them in the reverse one. Use as a context manager.

    `line` gets every line of output with the name of its process. Raises ValueError for arguments that cannot be used.
    """

    def __init__(self, graph: Graph, arguments: Mapping[str, str], line: Line) -> None:
        values = graph.values(arguments)
        check(graph, values)
        started = graph.started(values)
        self._commands = {spec.name: arguments_of(graph, spec, arguments) for spec in started}
        self._specs = {spec.name: spec for spec in started}
        self._line = line
        self._running: dict[str, Running] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *names: str) -> None:
        """Start the named processes, all if none is named. Raises StartError if one cannot be executed.

        They end with the thread that calls this, as the kernel counts it: call it, and `check`, in the main one.
        """
        for name in names or tuple(self._commands):
            self._start(name, RespawnPolicy(self._specs[name]))

    def _start(self, name: str, policy: RespawnPolicy) -> None:
        try:
            process = subprocess.Popen(
                self._commands[name],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
                # Ctrl-C reaches only this process, which then ends the others in order.
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StartError(f"{name} cannot start: {error}") from None
        running = Running(self._specs[name], process, policy)
        self._running[name] = running
        output = process.stdout
        if output is not None:
            running.reader = threading.Thread(target=self._read, args=(name, running, output), daemon=True)
            running.reader.start()

    def wait_until(self, ready: Callable[[], bool], what: str, limit: float) -> None:
        """Wait for `ready`. Raises StartError after `limit` seconds, or as `check` does."""
        end = time.monotonic() + limit
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise StartError(f"{what} not within {limit:g} s")
            time.sleep(POLL_S)

    def check(self) -> None:
        """Start processes that died again, after a delay and a limited number of times; call it now and then.

        Raises StartError where one died that everything needs.
        """
        now = time.monotonic()
        for name, running in list(self._running.items()):
            code = running.process.poll()
            if code is None or self._finished(running):
                continue
            if running.again_at is None:
                try:
                    running.policy.should_respawn(code)
                except RuntimeError as error:
                    running.read_out()
                    raise StartError(
                        f"{error}: {running.last_error or running.last_line or 'it printed nothing'}"
                    ) from None
                running.again_at = now + RESPAWN_S
                self._line(name, f"[WARN] ended with status {code}; it starts again in {RESPAWN_S:g} s")
            elif now >= running.again_at:
                self._start(name, running.policy)

    def done(self) -> bool:
        """Return whether a process whose work has an end has done it."""
        return any(map(self._finished, self._running.values()))

    def alive(self, name: str) -> bool:
        """Return whether a process runs."""
        return name in self._running and self._running[name].process.poll() is None

    def stop(self, *names: str) -> None:
        """End the named processes (all if none is named), last started first.

        Managed nodes come before the others: what they end with, as a stop that is confirmed, needs the robot.
        """
        chosen = [self._running.pop(name) for name in reversed(names or tuple(self._running)) if name in self._running]
        managed = [
            running
            for running in chosen
            if isinstance(running.spec, NodeSpec) and (running.spec.managed or running.spec.name == MANAGER)
        ]
        for wave in (managed, [running for running in chosen if running not in managed]):
            self._end(wave)
            for running in wave:
                running.read_out()

    @staticmethod
    def _end(chosen: Sequence[Running]) -> None:
        """Send SIGTERM, which is quiet even while Python still imports, then SIGINT, then SIGKILL."""
        for number, patience in ((signal.SIGTERM, TERMINATE_S), (signal.SIGINT, INTERRUPT_S), (signal.SIGKILL, 5.0)):
            for running in chosen:
                if running.process.poll() is None:
                    running.process.send_signal(number)
            end = time.monotonic() + patience
            for running in chosen:
                try:
                    running.process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
            if all(running.process.poll() is not None for running in chosen):
                return

    def kill(self, name: str) -> None:
        """End a process at once, as a crash would (SIGKILL)."""
        running = self._running.pop(name)
        running.process.kill()
        running.process.wait()

    @staticmethod
    def _finished(running: Running) -> bool:
        return running.spec.finite and running.process.poll() == 0

    @property
    def names(self) -> list[str]:
        """The started processes, in their order."""
        return list(self._running)

    def pid(self, name: str) -> int:
        """Return the process id of a started process."""
        return self._running[name].process.pid

    def _read(self, name: str, running: Running, stream: IO[str]) -> None:
        for line in stream:
            running.last_line = line.rstrip() or running.last_line
            if any(mark in line for mark in ERRORS):
                running.last_error = line.rstrip()
            self._line(name, line.rstrip())


def free_address() -> str:
    """Return a loopback address that nobody listens on.

    Its port is none of those that the system gives to others, who might get it before it is listened on.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"tcp://127.0.0.1:{port}"
    raise OSError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are taken")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a graph until Ctrl-C or SIGTERM, or until it is done: python -m spec_vlm_nav.runner sim seed:=3 mode:=sd."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in GRAPHS or not all(":=" in word for word in words[1:]):
        print(f"usage: python -m {PACKAGE}.runner {{{','.join(GRAPHS)}}} [NAME:=VALUE ...]", file=sys.stderr)
        return 2
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        given = dict(word.split(":=", 1) for word in words[1:])
        with Runner(GRAPHS[words[0]], given, lambda name, line: print(f"[{name}] {line}", flush=True)) as runner:
            runner.start()
            while not ended.wait(0.2) and not runner.done():
                runner.check()
    except (ValueError, StartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
