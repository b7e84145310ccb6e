"""Consistent hashing with bounded loads: everybody finds room, nobody gets too much, and few move."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.cluster.ring import Ring

NAMES = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


@given(NAMES, st.text(max_size=8))
def test_a_key_has_every_replica_once_in_an_order_of_its_own(names: set[str], key: str) -> None:
    order = list(Ring(names, points=8).clockwise(key))
    assert sorted(order) == sorted(names)
    assert order == list(Ring(sorted(names), points=8).clockwise(key))


@given(NAMES, st.text(max_size=8), st.data())
def test_one_that_goes_moves_only_its_own(names: set[str], key: str, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    before = list(Ring(names, points=8).clockwise(key))
    assert list(Ring(names - {gone}, points=8).clockwise(key)) == [name for name in before if name != gone]


@given(NAMES, st.integers(1, 60), st.floats(1.0, 2.0), st.data())
def test_everybody_finds_room_and_nobody_has_more_than_its_share(
    names: set[str], robots: int, bound: float, data: st.DataObject
) -> None:
    weights = {name: data.draw(st.floats(0.1, 8.0)) for name in sorted(names)}
    ring, loads = Ring(names, points=8), Counter[str]()
    for robot in range(robots):
        loads[next(ring.with_room(f"robot {robot}", loads, weights, bound))] += 1
    whole = sum(weights.values())
    assert all(loads[name] <= math.ceil(bound * robots * weights[name] / whole) for name in names)


def test_most_robots_are_where_the_ring_alone_has_them() -> None:
    ring, loads = Ring(f"replica {number}" for number in range(4)), Counter[str]()
    at_home = 0
    for robot in range(400):
        home = next(ring.with_room(f"robot {robot}", loads))
        at_home += home == next(ring.clockwise(f"robot {robot}"))
        loads[home] += 1
    assert at_home > 350


def test_replicas_that_all_weigh_nothing_share_alike() -> None:
    assert set(Ring("ab").with_room("key", {}, {"a": 0.0})) == {"a", "b"}
    assert list(Ring(()).with_room("key", {})) == []


def test_a_bound_that_has_no_room_for_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bound 0\.9 is below 1"):
        list(Ring("ab").with_room("key", {}, bound=0.9))
