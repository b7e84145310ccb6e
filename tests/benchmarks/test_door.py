"""The benchmark of the door: whose process is killed, and when a robot counts as served again."""

from __future__ import annotations

import random
import signal
from typing import Any

import pytest

from benchmarks import door as benchmark
from benchmarks.door import door_of, kill_doors
from cloud_verifier.door.supervisor import Door


def test_the_process_of_a_door_is_found_by_its_address() -> None:
    door = Door("tcp://127.0.0.1:*")
    try:
        assert door_of(door.address) == door.pid
    finally:
        door.close()
    with pytest.raises(RuntimeError, match="no door at"):
        door_of(door.address)


class Clock:
    """Time that passes in sleep alone, and two robots whose bytes come at declared times after a kill."""

    def __init__(self) -> None:
        self.now = 0.0
        self.killed = [float("-inf")]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now

    def kill(self, pid: int, number: int) -> None:
        assert (pid, number) == (7, signal.SIGKILL)
        self.killed.append(self.now)


class Robot:
    """Gets what was in flight 10 ms after a kill, and tokens `after` it."""

    def __init__(self, clock: Clock, after: float) -> None:
        self._clock, self._after = clock, after

    @property
    def received(self) -> int:
        ago = [self._clock.now - killed for killed in self._clock.killed]
        return sum((each > 0.01) + (each > self._after) for each in ago)


def test_what_was_in_flight_is_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(benchmark, "time", clock)
    monkeypatch.setattr(benchmark, "os", clock)
    monkeypatch.setattr(benchmark, "door_of", lambda address: 7)
    robots: Any = [Robot(clock, 0.3), Robot(clock, 0.5)]
    times = kill_doors("tcp://127.0.0.1:1", robots, 3, random.Random(1))
    assert sorted(times) == pytest.approx([0.3] * 3 + [0.5] * 3, abs=2 * benchmark.LOOK_S)
    monkeypatch.setattr(benchmark, "LIMIT_S", 0.4)
    with pytest.raises(RuntimeError, match="1 robots got nothing"):
        kill_doors("tcp://127.0.0.1:1", robots, 1, random.Random(1))
