"""The directory: replicas join, report, drain and fall silent; robots go where there is room and where they were."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.cluster.directory import (
    BOUND,
    SETTLED_S,
    SILENT_S,
    Directory,
    Phase,
    Status,
    preferred,
    with_room,
)

NAMES = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


def status(name: str = "a", phase: Phase = Phase.READY, born: float = 1.0, **fields: Any) -> Status:
    return Status(name, phase, born, **{"address": f"tcp://{name}:1", "session_places": 8, **fields})


def known(*reports: Status, now: float = 0.0) -> Directory:
    directory = Directory()
    for report in reports:
        directory.report(report, now)
    return directory


def chosen(directory: Directory, key: str = "robot", now: float = 0.0, prefix: bytes = b"", before: str = "") -> str:
    found = directory.choose(key, now, prefix, before)
    return found.name if found is not None else ""


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.DRAINING])
def test_robots_are_sent_to_ready_replicas_only(phase: Phase) -> None:
    directory = known(status("a", phase), status("b"))
    assert {chosen(directory, f"robot {number}", before="a") for number in range(8)} == {"b"}
    assert chosen(known(status("a", phase))) == ""


def test_one_that_is_silent_is_gone_and_comes_back_with_its_next_report() -> None:
    directory = known(status("a"))
    assert chosen(directory, now=SILENT_S) == "a"
    assert chosen(directory, now=SILENT_S + 0.1) == "" and directory.replicas(SILENT_S + 0.1) == ()
    directory.report(status("a"), 5.0)
    assert chosen(directory, now=5.0) == "a"


def test_nobody_comes_back_from_draining_but_a_new_process_begins_anew() -> None:
    directory = known(status("a"))
    directory.drain("a")
    assert chosen(directory) == ""
    directory.report(status("a"), 0.1)
    assert chosen(directory, now=0.1) == ""
    directory.report(status("a", Phase.DRAINING), 0.2)
    directory.report(status("a"), 0.3)
    assert directory.replicas(0.3)[0].phase is Phase.DRAINING
    directory.report(status("a", born=2.0), 0.4)
    assert chosen(directory, now=0.4) == "a"
    directory.report(status("a", Phase.DRAINING, born=1.0), 0.5)
    assert chosen(directory, now=0.5) == "a"


def test_robots_that_were_just_sent_count_before_the_replica_reports_them() -> None:
    directory = known(status("a", session_places=2))
    assert [chosen(directory, key) for key in "xxxxxyz"] == ["a"] * 6 + [""], "one that asks again has one place"
    assert chosen(directory, "z", SETTLED_S + 0.1) == "a"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 40))
def test_none_gets_more_robots_than_it_takes_and_all_that_fit_get_in(rooms: list[int], robots: int) -> None:
    directory = known(*(status(f"replica {number}", session_places=room) for number, room in enumerate(rooms)))
    loads = Counter(chosen(directory, f"robot {number}") for number in range(robots))
    placed = sum(count for name, count in loads.items() if name)
    assert placed == min(robots, sum(rooms))
    assert all(loads[f"replica {number}"] <= room for number, room in enumerate(rooms))


@pytest.mark.parametrize("before", ["a", "b"])
def test_a_robot_that_comes_back_finds_its_session_also_where_all_are_taken(before: str) -> None:
    directory = known(status("a", sessions=8), status("b", sessions=8))
    assert chosen(directory, "robot", before=before) == before
    assert chosen(directory, "robot", before="c") == ""


def test_robots_with_one_prompt_gather_where_there_is_room() -> None:
    def homes(prefix: bytes) -> list[str]:
        """Where four robots go after twenty others."""
        directory = known(status("a", session_places=100), status("b", session_places=100))
        for number in range(20):
            chosen(directory, f"other {number}")
        return [chosen(directory, f"robot {number}", prefix=prefix) for number in range(4)]

    assert set(homes(b"")) == {"a", "b"}
    assert homes(b"prompt") == homes(b"")[:1] * 4


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=5))
def test_what_is_too_many_on_some_has_room_on_others(replicas: list[tuple[int, int]]) -> None:
    directory = known(
        *(status(f"replica {n}", sessions=count, session_places=room) for n, (count, room) in enumerate(replicas))
    )
    surplus = directory.surplus(0.0)
    assert len(surplus) < len(replicas)
    assert all(0 < robots <= replicas[int(name[-1])][0] for name, robots in surplus.items())


@given(NAMES, st.text(max_size=8), st.data())
def test_one_that_goes_moves_only_its_own(names: set[str], key: str, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    before = preferred(key, sorted(names))
    assert sorted(before) == sorted(names)
    assert preferred(key, names - {gone}) == [name for name in before if name != gone]


@given(NAMES, st.integers(1, 60), st.data())
def test_everybody_finds_room_and_nobody_has_more_than_its_share(
    names: set[str], robots: int, data: st.DataObject
) -> None:
    weights = {name: data.draw(st.floats(0.1, 8.0)) for name in sorted(names)}
    loads = Counter(dict.fromkeys(names, 0))
    for robot in range(robots):
        loads[with_room(f"robot {robot}", loads, weights)[0]] += 1
    whole = sum(weights.values())
    assert all(loads[name] <= math.ceil(BOUND * robots * weights[name] / whole) for name in names)
