"""What counts as growth, and what is read of a process."""

from __future__ import annotations

import mmap
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlm_nav_evaluation.soak import ALLOWED_MB, Sample, growth, sample


def test_a_process_that_keeps_what_it_has_does_not_grow() -> None:
    noisy = [Sample(200 + place % 3, 12, 40 + place % 2) for place in range(50)]
    filling = [Sample(min(place, 10) * 10, 5, 20) for place in range(60)]
    for samples in (noisy, filling):
        assert not growth("x", samples)["grows"]


@pytest.mark.parametrize("name", Sample._fields)
def test_a_leak_shows(name: str) -> None:
    still = Sample(20, 5, 20)
    assert growth("x", [still._replace(**{name: 20 + place}) for place in range(50)])["grows"]


@given(st.lists(st.integers(10, 500), min_size=3, max_size=60))
def test_growth_is_measured_between_the_thirds(sizes: list[int]) -> None:
    found = growth("x", [Sample(size, 1, 1) for size in sizes])
    assert min(sizes) <= found["memory_mb"] <= max(sizes)
    assert found["memory_mb"] + found["grown"]["memory_mb"] <= max(sizes) + ALLOWED_MB


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
        -1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # pages of its own: an allocator may have as much to spare
    ballast.write(b"x" * len(ballast))
    after = sample(os.getpid())
    end.set()
    os.close(read)
    os.close(write)
    assert after.threads == before.threads + 1 and after.files == before.files + 2
    assert after.memory_mb - before.memory_mb > 4
    ballast.close()
    with pytest.raises(OSError):
        sample(2**22 + 1)
