"""A program that gets Ctrl-C or SIGTERM while it imports or loads ends by one line, with no traceback and no child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest

from speculation.program_exit import INTERRUPTED, SIGNALS, program, status_of
from tests.cloud_verifier.process import ROOT_FOLDER, command, frontends_of

PROGRAMS = [
    "adapters_training", "benchmarks.latency", "cloud_verifier", "speculation.vlm", "spec_vlm_nav.runner",
    "spec_vlm_nav.nodes.vlm_nav", "spec_vlm_nav.nodes.go2_bridge", "vlm_nav_evaluation.nodes.bag_player",
]  # fmt: skip
"""One or two of each package: it is the package that takes the signals."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def hold() -> None:
    """Let signals wait until the program takes them, as a launch does: of Python's own start nothing is tested."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def ended(words: Sequence[str], number: signal.Signals, after_s: float) -> tuple[int, str]:
    """Start a program, send it a signal and return its status and what it wrote to stderr."""
    process = subprocess.Popen(
        words, cwd=ROOT_FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=hold,
        env=ENVIRONMENT,
    )  # fmt: skip
    time.sleep(after_s)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize(("name", "number"), list(zip(PROGRAMS, cycle(SIGNALS), strict=False)))
def test_a_program_ends_by_one_line_from_its_first_instant_on(name: str, number: signal.Signals) -> None:
    assert ended([sys.executable, "-m", name], number, 0.0) == (status_of(name), f"{name}: ended by {number.name}\n")


@pytest.mark.parametrize(
    ("name", "after_s"), [("cloud_verifier", 0.2), ("vlm_nav_evaluation", 0.6), ("spec_vlm_nav.nodes.vlm_nav", 1.5)]
)
def test_a_program_that_imports_or_has_begun_shows_no_traceback(name: str, after_s: float) -> None:
    """Where it is by then is the machine's matter: it may be over, or have handlers of its own."""
    status, errors = ended([sys.executable, "-m", name, "--help"], signal.SIGINT, after_s)
    assert "Traceback" not in errors and status >= 0, (status, errors)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_verifier_that_still_loads_leaves_no_process_behind(tiny_target: Path, number: signal.Signals) -> None:
    words = command("serve", "--model", str(tiny_target), "--bind", "tcp://127.0.0.1:*")
    process = subprocess.Popen(words, cwd=ROOT_FOLDER, stderr=subprocess.PIPE, text=True, preexec_fn=hold)
    end = time.monotonic() + 60.0
    while not (frontends := frontends_of(process.pid)):  # it opens its socket before it loads the model
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and "Traceback" not in errors, errors
    end = time.monotonic() + 60.0
    while any(Path(f"/proc/{pid}").exists() for pid in frontends):
        assert time.monotonic() < end, "the frontend's process stays"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "-X", "dev", "-u", "-m", "spec_vlm_nav.nodes.web"], "spec_vlm_nav.nodes.web"),
        (["python", "/ws/install/spec_vlm_nav/lib/spec_vlm_nav/go2_bridge", "--ros-args"], "go2_bridge"),
        (["python", "/usr/bin/spec-vlm-nav-verifier", "serve"], "spec-vlm-nav-verifier"),
        (["python", "-m", "pytest", "cloud_verifier"], ""),
        (["python", "-m", "cloud_verifier_of_mine"], ""),
        (["python", "-c", "import cloud_verifier"], ""),
        (["python", "mine.py", "-m", "cloud_verifier"], ""),
        (["python"], ""),
    ],
)
def test_only_programs_of_this_project_are_touched(words: list[str], name: str) -> None:
    assert program(words) == name


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("cloud_verifier", 0), ("spec_vlm_nav.nodes.web", 0), ("go2_bridge", 0), ("spec-vlm-nav-verifier", 0),
        ("vlm_nav_evaluation.nodes.bag_player", 0), ("adapters_training", INTERRUPTED),
        ("spec-vlm-nav-train", INTERRUPTED),
    ],
)  # fmt: skip
def test_what_serves_has_done_its_work_and_a_command_has_not(name: str, status: int) -> None:
    assert status_of(name) == status


def test_an_import_by_others_changes_nothing() -> None:
    check = "import signal, cloud_verifier, spec_vlm_nav, speculation; from signal import *; " + (
        "assert getsignal(SIGINT) is default_int_handler and getsignal(SIGTERM) is SIG_DFL"
    )
    subprocess.run([sys.executable, "-c", check], cwd=ROOT_FOLDER, check=True, env=ENVIRONMENT)


def test_a_program_that_has_taken_its_signals_keeps_them() -> None:
    """Whatever package it imports later."""
    check = (
        "import sys, signal; sys.orig_argv = ['python', '-m', 'cloud_verifier']\n"
        "import cloud_verifier; from speculation import program_exit, worker_processes\n"
        "assert signal.getsignal(signal.SIGINT).__module__ == 'speculation.program_exit'\n"
        "with worker_processes.terminable():\n"
        "    import spec_vlm_nav; program_exit.take_signals()\n"
        "    assert all(signal.getsignal(each) is signal.default_int_handler for each in program_exit.SIGNALS)\n"
    )
    subprocess.run([sys.executable, "-c", check], cwd=ROOT_FOLDER, check=True, env=ENVIRONMENT)


@pytest.mark.parametrize("ignored", SIGNALS)
def test_a_signal_that_is_ignored_stays_so_when_the_others_get_their_own_handlers_back(ignored: signal.Signals) -> None:
    """A shell starts what a script puts into the background with SIGINT ignored."""
    check = (
        f"import sys, signal; signal.signal({ignored:d}, signal.SIG_IGN)\n"
        "sys.orig_argv = ['python', '-m', 'cloud_verifier']\n"
        "import cloud_verifier; from speculation import program_exit; program_exit.release_signals()\n"
        "handlers = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}\n"
        f"handlers[signal.Signals({ignored:d})] = signal.SIG_IGN\n"
        "assert {number: signal.getsignal(number) for number in handlers} == handlers\n"
    )
    subprocess.run([sys.executable, "-c", check], cwd=ROOT_FOLDER, check=True, env=ENVIRONMENT)
