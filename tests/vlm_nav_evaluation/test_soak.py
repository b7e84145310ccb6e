"""What counts as growth, and what is read of a process."""

from __future__ import annotations

import mmap
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlm_nav_evaluation.soak import MEMORY_BYTES, Sample, growth, sample

MB = 1 << 20


def test_a_process_that_keeps_what_it_has_does_not_grow() -> None:
    noisy = [Sample(200 * MB + (place % 3) * MB, 12, 40 + place % 2) for place in range(50)]
    assert not growth("x", noisy).grows


@pytest.mark.parametrize("name, step", [("memory", MB), ("threads", 1), ("files", 1)])
def test_a_leak_shows(name: str, step: int) -> None:
    leaking = [
        Sample(**{"memory": 20 * MB, "threads": 5, "files": 20} | {name: 20 * MB + place * step}) for place in range(50)
    ]
    assert growth("x", leaking).grows


def test_what_grows_only_in_the_warm_up_does_not_count() -> None:
    filling = [Sample(min(place, 10) * 10 * MB, 5, 20) for place in range(60)]
    assert not growth("x", filling).grows


@given(st.lists(st.integers(10, 500), min_size=3, max_size=60))
def test_growth_is_measured_between_the_thirds(sizes: list[int]) -> None:
    found = growth("x", [Sample(size * MB, 1, 1) for size in sizes])
    assert min(sizes) <= found.memory_mb <= max(sizes)
    assert found.memory_mb + found.memory_grown_mb <= max(sizes) + MEMORY_BYTES / MB


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth("x", [Sample(1, 1, 1)] * 2)


def test_a_process_is_read_as_it_is() -> None:
    before = sample(os.getpid())
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    read, write = os.pipe()
    ballast = mmap.mmap(
        -1, 8 * MB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # pages of its own: an allocator may have as much to spare
    ballast.write(b"x" * len(ballast))
    after = sample(os.getpid())
    end.set()
    os.close(read)
    os.close(write)
    assert after.threads == before.threads + 1 and after.files == before.files + 2
    assert after.memory - before.memory > 4 * MB
    ballast.close()
    with pytest.raises(OSError):
        sample(2**22 + 1)
