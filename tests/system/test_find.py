"""`find` as a process against an action server of the tests: exit status, Ctrl-C, and a server that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spec_vlm_nav.runner import PROJECT
from tests.forked import popen
from tests.system.conftest import LIMIT_S, until

FIND = [sys.executable, "-m", "spec_vlm_nav.nodes.find"]
OTHER = ("--ros-args", "-r", "__ns:=/other")
"""For tests with servers of their own."""
SERVER = [sys.executable, "-m", "tests.system.goal_server"]


class Process:
    """A process whose lines of output are collected."""

    def __init__(self, *command: str) -> None:
        self.lines: list[str] = []
        self.process = popen([*command], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def has(self, words: str) -> bool:
        return any(words in line for line in list(self.lines))

    def end(self) -> int:
        status = self.process.wait(LIMIT_S)
        self._thread.join(LIMIT_S)
        print("\n".join(self.lines))
        return status

    def goals(self) -> list[dict[str, Any]]:
        """Return the goals that a server took."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]


@contextmanager
def started(*command: str) -> Iterator[Process]:
    process = Process(*command)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with started(*SERVER) as process:
        until(lambda: process.has("up"), "the server is up")
        yield process


def find(*words: str) -> Process:
    return Process(*FIND, *words)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[Process]:
    """One that looks for a server where there is none: its 10 s go by while the others are tested."""
    with started(*FIND, "the ball", "--ros-args", "-r", "__ns:=/dog1") as process:
        yield process


def test_a_found_object_is_status_0_and_every_decision_a_line(server: Process) -> None:
    run = find("the", "red", "ball", "--time", "60", "--max-actions", "9")
    assert run.end() == 0
    taken = {"instruction": "find the red ball", "time": 60.0, "actions": 9, "done": []}
    until(lambda: server.goals()[-1:] == [taken], "the goal that the server took")
    answers = [number for number, line in enumerate(run.lines) if line.strip().startswith("The ball is to the left.")]
    decisions = [number for number, line in enumerate(run.lines) if "turn left large  (verified)" in line]
    assert len(answers) == len(decisions) == 3
    assert all(answer < decision for answer, decision in zip(answers, decisions, strict=True))
    assert run.lines[-1].startswith("found") and "3 actions, 1.5 m" in run.lines[-1]


ENDS = [
    (("the void",), 1, "not found [TIMEOUT]: time is up"),
    (("the ghost",), 3, "not here: I looked everywhere (3 actions"),
    (("go to the door",), 2, "names no known object"),
    (("the ball", "--time", "-3"), 2, "time_s"),
]


def test_what_is_not_found_or_refused_has_a_status_of_its_own(server: Process) -> None:
    runs = [find(*words) for words, _, _ in ENDS]
    for run, (words, status, said) in zip(runs, ENDS, strict=True):
        assert run.end() == status and run.has(said) and not run.has("lifecycle"), words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_ctrl_c_cancels_and_waits_for_the_stop(server: Process, number: signal.Signals) -> None:
    before = server.lines.count('"cancelled"')
    run = find("the wall")
    until(lambda: run.has("turn left large"), "a decision is shown")
    run.process.send_signal(number)
    assert run.end() == 130
    until(lambda: server.lines.count('"cancelled"') == before + 1, "the goal is cancelled")
    assert run.has("cancelled: the robot stands")


def test_a_reader_that_leaves_cancels_too(server: Process) -> None:
    before = server.lines.count('"cancelled"')
    pipe = subprocess.Popen(
        ["sh", "-c", '"$@" | head -n 3', "sh", *FIND, "the wall"], cwd=PROJECT, stdout=subprocess.DEVNULL
    )
    assert pipe.wait(LIMIT_S) == 0
    until(lambda: server.lines.count('"cancelled"') == before + 1, "the goal is cancelled")


def test_a_server_is_asked_until_it_is_active_left_at_a_second_ctrl_c_and_given_up_once_it_knows_no_goal() -> None:
    with started(*SERVER, "endless", "inactive", *OTHER) as first:
        until(lambda: first.has("up"), "the server is up")
        run = find("the", "ball", *OTHER)
        until(lambda: run.has("turn left large"), "a decision is shown")
        assert len(first.goals()) == 2, "the first was refused"
        impatient = find("the wall", *OTHER)
        until(lambda: impatient.has("turn left large"), "a decision is shown")
        first.process.send_signal(signal.SIGSTOP)
        impatient.process.send_signal(signal.SIGINT)
        until(lambda: impatient.has("stopping"), "it waits for the stop")
        impatient.process.send_signal(signal.SIGINT)
        assert impatient.end() == 130
        assert impatient.has("confirmed the stop: watch the robot")
        first.process.kill()
        until(lambda: run.has("the action server is silent"), "its end is noticed")
    with started(*SERVER, *OTHER) as second:
        assert run.end() == 1
        assert run.has("restarted and knows nothing of the goal") and not second.goals()


def test_without_a_server_it_names_what_to_look_at(alone: Process) -> None:
    assert alone.end() == 2
    assert alone.has("no active action server") and alone.has("ros2 lifecycle get /dog1/vlm_nav")
