"""What counts as growth, and what is read of a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vlm_nav_evaluation.soak import Sample, growth, sample


def test_a_process_that_keeps_what_it_has_does_not_grow() -> None:
    noisy = [Sample(200 + place % 3, 12, 40 + place % 2) for place in range(50)]
    filling = [Sample(min(place, 10) * 10, 5, 20) for place in range(60)]
    for samples in (noisy, filling):
        assert not growth("x", samples)["grows"]


@pytest.mark.parametrize("name", Sample._fields)
def test_a_leak_shows(name: str) -> None:
    still = Sample(20, 5, 20)
    assert growth("x", [still._replace(**{name: 20 + place}) for place in range(50)])["grows"]


GROWING = """
import mmap, os, sys, threading
print("begun", flush=True)
sys.stdin.readline()
threading.Thread(target=threading.Event().wait, daemon=True).start()
pipe = os.pipe()
ballast = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
ballast.write(b"x" * len(ballast))
print("grown", flush=True)
sys.stdin.readline()
"""
"""By a thread, two files and pages of its own: an allocator may have as much to spare."""


def test_a_process_is_read_as_it_is() -> None:
    command = [sys.executable, "-c", GROWING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        before = sample(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "grown\n"
        after = sample(process.pid)
    assert after.threads == before.threads + 1 and after.files == before.files + 2
    assert after.memory_mb - before.memory_mb > 4
    with pytest.raises(OSError):
        sample(2**22 + 1)
