"""Ends a program of this project by one line where it is ended, or cannot go on, before it has handlers of its own.

Imports and models take seconds, in which Python would print a traceback and end with the signal, which a launch reports
as a process that has died. So every package that has a program calls `take_signals` before it imports what takes time.
In other people's programs, tests among them, that does nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from types import FrameType

PACKAGES = (
    "adapters_training", "benchmarks", "cloud_verifier", "edge_drafter", "spec_vlm_nav", "speculation",
    "vlm_nav_evaluation", "vlm_nav_simulation",
)  # fmt: skip
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAUNCH_S = 0.5
"""How long a process of a launch stays after a signal. A terminal sends Ctrl-C to it too, and the launch's own signal,
which comes a little later, would find a process that has ended, whose status asyncio then takes to be 255."""
STATUS, INTERRUPTED = 0, 130
"""Exit statuses of what serves until it is ended, and of a command whose work is not done."""

_begun = False


def program(words: list[str]) -> str:
    """Return which program of this project a Python was started with by these words; empty: none.

    It is a module's full name, or that of an installed script.
    """
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            module = next(rest, "")
            return module if module.partition(".")[0] in PACKAGES else ""
        if word in ("-W", "-X"):
            next(rest, "")
        elif word == "-c" or not word.startswith("-"):
            folder, name = os.path.split(word)
            of_ros = os.path.basename(folder) == "spec_vlm_nav"
            return name if of_ros or name.startswith("spec-vlm-nav-") else ""
    return ""


def status_of(name: str) -> int:
    """Return the exit status of a program that was ended by a signal."""
    package, _, rest = name.partition(".")
    batch = package.startswith("spec-vlm-nav-") and package != "spec-vlm-nav-verifier"
    batch = batch or (package in PACKAGES and package not in ("cloud_verifier", "spec_vlm_nav"))
    return INTERRUPTED if batch and not rest.startswith("nodes.") else STATUS


def take_signals() -> None:
    """Take the signals of this process, if it is a program of ours.

    They are taken until the program takes them itself or calls `release_signals`, and once: packages are also imported
    while a program runs.
    """
    global _begun
    name = program(sys.orig_argv)
    if _begun or not name:
        return
    _begun = True
    # A launch holds signals back until they can be taken, see `spec_vlm_nav.launching`.
    launched = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def ignore() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if launched:
            time.sleep(LAUNCH_S)

    def leave(number: int, _: FrameType | None) -> None:
        try:
            os.write(2, f"{name}: ended by {signal.Signals(number).name}\n".encode())
            ignore()
        finally:
            os._exit(status_of(name))

    # The engine ends its frontend, which may still send the last answers.
    handler = signal.SIG_IGN if name == "cloud_verifier.frontend" else leave
    try:
        for number in SIGNALS:
            # What whoever started it has asked to be ignored stays so.
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, handler)
        # While Python takes itself down it knows no handlers any more.
        atexit.register(ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    except ValueError:  # not in the main thread, so it is no start
        return


def release_signals() -> None:
    """Let the signals do what they do in Python: KeyboardInterrupt, and a sudden end."""
    # One that whoever started the program has asked to be ignored was never taken.
    for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if getattr(signal.getsignal(number), "__module__", "") == __name__:
            signal.signal(number, handler)
