"""The small runner with real, tiny processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.process_graph import CommandSpec, Graph, NodeSpec
from spec_vlm_nav.runner import Runner, StartError, main

LIMIT_S = 120.0
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(2, 1); signal.signal(15, 1); print('up', flush=True); time.sleep(600)"
POLITE = """
import signal, sys, time
def end(*_): print('bye', flush=True); sys.exit(0)
signal.signal(15, end); print('up', flush=True)
while True: time.sleep(0.05)
"""


def python(name: str, code: str, respawns: int = 0) -> CommandSpec:
    return CommandSpec(name, ("python3", "-c", code), respawns)


class Lines:
    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        with self._lock:
            self.got.append((name, line))

    def has(self, name: str, line: str) -> bool:
        return (name, line) in list(self.got)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is slow because the machine is busy is read to its end, and not killed."""
    monkeypatch.setattr("spec_vlm_nav.runner.READ_S", LIMIT_S)
    monkeypatch.setattr("spec_vlm_nav.runner.TERMINATE_S", LIMIT_S)


def test_the_end_is_polite_and_of_managed_nodes_before_the_robot_that_they_stop() -> None:
    lines = Lines()
    node = NodeSpec("bridge", "sim.yaml", managed=True, module="tests.spec_vlm_nav.slow_end")
    with Runner(Graph((), (node, python("robot", POLITE))), {}, lines) as runner:
        runner.start()
        runner.wait_until(lambda: lines.has("bridge", "up") and lines.has("robot", "up"), "both up", LIMIT_S)
    assert lines.got.index(("bridge", "bye")) < lines.got.index(("robot", "bye"))
    assert not runner.alive("bridge") and not runner.alive("robot")


def test_a_stubborn_process_is_killed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec_vlm_nav.runner.INTERRUPT_S", 0.2)
    monkeypatch.setattr("spec_vlm_nav.runner.TERMINATE_S", 0.2)
    lines = Lines()
    with Runner(Graph((), (python("a", STUBBORN),)), {}, lines) as runner:
        runner.start()
        runner.wait_until(lambda: lines.has("a", "up"), "up", LIMIT_S)
        pid = runner._running["a"].process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_refuses_its_settings_ends_the_wait_with_its_last_words() -> None:
    refuses = python("a", "print('no model here', flush=True); raise SystemExit(2)", respawns=3)
    with Runner(Graph((), (refuses,)), {}, Lines()) as runner:
        runner.start()
        with pytest.raises(StartError, match="a ended with status 2"):
            runner.wait_until(lambda: False, "never", LIMIT_S)


def test_a_process_that_dies_is_started_again_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec_vlm_nav.runner.RESPAWN_S", 0.1)
    lines = Lines()
    with Runner(Graph((), (python("a", SLEEPER, respawns=1),)), {}, lines) as runner:
        runner.start()
        runner.wait_until(lambda: lines.has("a", "up"), "up", LIMIT_S)
        first = runner.pid("a")
        lines.got.clear()
        os.kill(first, signal.SIGKILL)
        runner.wait_until(lambda: lines.has("a", "up"), "up again", LIMIT_S)
        assert runner.pid("a") != first and runner.alive("a")
        assert lines.has("a", "[WARN] ended with status -9; it starts again in 0.1 s")
        os.kill(runner.pid("a"), signal.SIGKILL)
        with pytest.raises(StartError, match="a ended with status -9 after 1 new starts"):
            runner.wait_until(lambda: False, "never", LIMIT_S)


KILLED = """
import sys
from spec_vlm_nav.process_graph import CommandSpec, Graph
from spec_vlm_nav.runner import Runner
with Runner(Graph((), (CommandSpec("a", ("python3", "-c", sys.argv[1])),)), {}, lambda *_: None) as runner:
    runner.start()
    print(runner.pid("a"), flush=True)
    sys.stdin.read()
"""


def test_processes_end_with_a_runner_that_is_killed() -> None:
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "ros_ws/src/spec_vlm_nav"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", KILLED, SLEEPER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    limit = time.monotonic() + LIMIT_S
    while runs(child) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not runs(child)


def runs(pid: int) -> bool:
    """Return whether a process runs; one that ended and is waited for by nobody does not."""
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "usage"),
        (["nothing"], "usage"),
        (["sim", "seed=3"], "usage"),
        (["sim", "seed:=abc"], "error: argument seed:=abc is no whole number\n"),
        (["sim", "draft_model:=/no/such"], "error: argument draft_model:=/no/such: model folder /no/such does not"),
    ],
)
def test_wrong_words_start_no_process_and_are_answered_with_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert sentence in said.err and not said.out
