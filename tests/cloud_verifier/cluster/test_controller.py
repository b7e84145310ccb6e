"""As many replicas run as are wanted; what ends is replaced, what cannot start does not spin, what hangs is ended."""

from __future__ import annotations

import pytest

from cloud_verifier.cluster.controller import HUNG_S, LONGEST_PAUSE_S, Controller
from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.scaling import Scaler, Scaling
from cloud_verifier.config import StartError


class Processes:
    """A fleet that starts at once; `log` has what was done to it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.log: list[str] = []

    def start(self, name: str) -> None:
        self.names.append(name)
        self.log.append(f"start {name}")

    def drain(self, name: str) -> None:
        self.log.append(f"drain {name}")

    def shed(self, name: str, robots: int) -> None:
        self.log.append(f"shed {robots} of {name}")

    def kill(self, name: str) -> None:
        self.log.append(f"kill {name}")


class World:
    def __init__(self, least: int = 2, most: int = 3, **scaling: float) -> None:
        self.fleet, self.directory, self.now = Processes(), Directory(), 0.0
        settings = Scaling(least, most, **scaling)  # type: ignore[arg-type]
        self.controller = Controller(self.directory, Scaler(settings), self.fleet, most)
        self.born = 0.0

    def turn(self, seconds: float = 0.0, **fields: float) -> list[str]:
        """Let time pass, all replicas report, and return what the controller does."""
        self.now += seconds
        before = len(self.fleet.log)
        for name in self.fleet.names:
            self.report(name, **fields)
        self.controller.turn(self.now)
        return self.fleet.log[before:]

    def reported_by(self, sessions: dict[int, int], seconds: float = 1.0) -> list[str]:
        """Let time pass in which only these replicas report, with so many robots; return what the controller does."""
        before = len(self.fleet.log)
        for _ in range(round(seconds)):
            self.now += 1.0
            for number, count in sessions.items():
                self.report(f"replica-{number}", sessions=count)
            self.controller.turn(self.now)
        return self.fleet.log[before:]

    def silence(self, seconds: float) -> list[str]:
        """Let time pass in which no replica reports, and return what the controller does."""
        return self.reported_by({}, seconds)

    def report(self, name: str, phase: Phase = Phase.READY, **fields: float) -> None:
        self.controller.reported(Status(name, phase, self.born, session_places=8, **fields), self.now)  # type: ignore[arg-type]

    def end(self, name: str) -> None:
        self.fleet.names.remove(name)
        self.controller.ended(name)

    def fail(self, name: str) -> None:
        self.fleet.names.remove(name)
        self.controller.failed(name, "no such device", self.now)


def test_one_that_dies_gets_no_robots_and_is_left_to_whoever_starts_it_again() -> None:
    world = World()
    world.turn()
    world.turn()
    world.controller.died("replica-1")
    assert [each.name for each in world.directory.ready(world.now)] == ["replica-2"]
    assert world.silence(2 * HUNG_S) == ["kill replica-2"]
    assert world.turn(0.1) == []
    assert len(world.directory.ready(world.now)) == 2


def test_one_that_fails_is_started_ever_more_rarely() -> None:
    world = World(1, 1)
    world.turn()
    world.turn()
    pauses = []
    for _ in range(9):
        world.fail("replica-1")
        began = world.now
        while "replica-1" not in world.fleet.names:
            world.now += 0.5
            world.controller.turn(world.now)
        pauses.append(world.now - began)
    assert pauses == sorted(pauses) and pauses[0] == 1.0 and pauses[-1] == LONGEST_PAUSE_S


def test_settings_that_cannot_start_end_the_cluster_unless_some_replica_has_started_with_them() -> None:
    world = World(1, 1)
    world.controller.turn(0.0)
    with pytest.raises(StartError, match="replica-1 cannot start: no such device"):
        world.fail("replica-1")
    world = World()
    world.turn()
    world.report("replica-2")
    world.fail("replica-1")


def test_one_that_hangs_is_ended_and_one_that_loads_is_not_whether_it_is_to_drain_or_not() -> None:
    world = World(2, 2)
    world.turn()
    world.report("replica-1")
    assert world.silence(HUNG_S) == []
    assert world.silence(1.0) == ["kill replica-1"]
    world.turn()
    world.controller.drain("replica-1")
    assert world.reported_by({2: 0}, HUNG_S + 1.0) == ["kill replica-1"]
    world.end("replica-1")
    assert world.turn(0.1) == ["start replica-1"], "its place is free"


def test_another_controller_ends_one_that_has_hung_before_it_came() -> None:
    """As where Ray starts the directory again: replica-1 hangs, replica-2 loads, replica-3 serves."""
    world = World(3, 3)
    world.turn()
    world.directory = Directory()
    world.controller = Controller(world.directory, Scaler(Scaling(3, 3), 3), world.fleet, 3)
    world.controller.turn(world.now)
    world.report("replica-2", Phase.JOINING)
    assert world.reported_by({3: 0}, HUNG_S + 1.0) == ["kill replica-1"]


def test_a_controller_that_was_away_itself_ends_nobody() -> None:
    world = World()
    world.turn()
    world.turn()
    world.now += 10 * HUNG_S  # its process was stopped; what was reported meanwhile is not read yet
    world.controller.turn(world.now)
    assert world.fleet.log[2:] == []
    assert world.silence(HUNG_S + 1.0) == ["kill replica-1", "kill replica-2"]


def test_one_that_was_to_drain_and_was_started_again_drains_again() -> None:
    world = World(1, 2)
    world.turn()
    world.turn()
    world.controller.drain("replica-1")
    world.born = 5.0
    assert world.turn(0.1)[0] == "drain replica-1"
    assert not [each.name for each in world.directory.ready(world.now) if each.name == "replica-1"]
    assert "drain replica-1" not in world.turn(0.1)


def test_with_less_to_do_the_emptiest_drains_and_does_not_come_back() -> None:
    world = World(1, 3, up_s=0.0, down_s=1.0)
    world.turn()
    assert world.turn(1.0, utilisation=2.0) == ["start replica-2", "start replica-3"]
    world.turn(1.0, utilisation=0.6)
    assert world.reported_by({1: 3, 2: 1, 3: 2}, 3.0)[:1] == ["drain replica-2"]
    world.end("replica-2")
    assert world.turn(0.1, utilisation=0.6) == []


def test_one_that_is_drained_by_hand_is_replaced() -> None:
    world = World(2, 3)
    world.turn()
    world.turn()
    world.controller.drain("replica-1")
    assert world.fleet.log[-1] == "drain replica-1"
    assert world.turn(0.1) == ["start replica-3"]
    world.end("replica-1")
    assert world.turn(0.1) == []


def test_robots_are_spread_again_after_one_that_died_is_back_and_then_stay() -> None:
    world = World()
    world.turn()
    assert world.reported_by({1: 8, 2: 0}, 5.0) == ["shed 3 of replica-1"]
    assert world.reported_by({1: 5, 2: 3}, 12.0) == []
