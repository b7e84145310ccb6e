"""Where processes run, and the time that they take of the processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from vlm_nav_evaluation.experiment.cpu_cores import Cores, described, placed


@pytest.mark.parametrize("cores", [Cores.FREE, Cores.ONE, Cores.SPLIT])
def test_threads_and_new_processes_stay_on_the_chosen_core(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = os.sched_getaffinity(0), list[set[int]]()
    if len(before) < 2:
        pytest.skip("one core alone")
    ranked, half = sorted(before), len(before) // 2
    expected = {
        Cores.FREE: [before, before],
        Cores.ONE: [{ranked[0]}, {ranked[0]}],
        Cores.SPLIT: [set(ranked[:half]), set(ranked[half:])],
    }[cores]
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        seen.append(os.sched_getaffinity(0))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with placed(cores):
        go.set()
        done.wait()
    with placed(cores, verifier=True):
        code = "import os; print(sorted(os.sched_getaffinity(0)))"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    thread.join()
    assert seen == [expected[0]] and child.stdout.strip() == str(sorted(expected[1]))
    assert os.sched_getaffinity(0) == before


def test_two_cores_take_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert described(Cores.ONE) == described(Cores.FREE) == "edge and verifier share core 3"
    with pytest.raises(ValueError, match="--cores split needs two cores"):
        described(Cores.SPLIT)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 4, 7})
    assert described(Cores.SPLIT) == "edge on core 3, verifier on core 4, 7"
