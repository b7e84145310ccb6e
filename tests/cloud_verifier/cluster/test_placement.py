"""Rendezvous hashing with bounded loads: everybody finds room, nobody gets too much, and few move."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.cluster.placement import BOUND, preferred, with_room

NAMES = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6)


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
