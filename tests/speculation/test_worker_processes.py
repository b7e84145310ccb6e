"""Worker processes end with the command that started them: at its end, by SIGTERM, and where it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from speculation.worker_processes import terminable, worker_pool

COMMAND = """
import os, sys, time
from pathlib import Path
from speculation.worker_processes import terminable, worker_pool

def work(out):
    (Path(out) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    try:
        with terminable(), worker_pool(2) as pool:
            for call in [pool.submit(work, sys.argv[1]) for _ in range(2)]:
                call.result()
    except KeyboardInterrupt:
        sys.exit(130)
"""


def _gone(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    # One that has ended and that nobody has waited for yet.
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.02)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_the_command(tmp_path: Path, sent: signal.Signals, status: int) -> None:
    script, out = tmp_path / "command.py", tmp_path / "workers"
    script.write_text(COMMAND)
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = subprocess.Popen([sys.executable, str(script), str(out)], env=environment)
    _until(lambda: len(list(out.iterdir())) == 2)
    command.send_signal(sent)
    assert command.wait(60) == status
    _until(lambda: all(_gone(int(worker.name)) for worker in out.iterdir()))


def test_results_come_back_and_workers_end_with_the_block() -> None:
    with worker_pool(2) as pool:
        workers = set(pool.map(_number, range(4)))
    assert os.getpid() not in workers
    _until(lambda: all(_gone(worker) for worker in workers))


def test_a_worker_that_is_killed_is_named() -> None:
    with pytest.raises(RuntimeError, match="a worker process was ended from outside"), worker_pool(1) as pool:
        pool.submit(_die).result()


def test_sigterm_interrupts_the_block_and_no_more() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def _number(_: int) -> int:
    return os.getpid()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
