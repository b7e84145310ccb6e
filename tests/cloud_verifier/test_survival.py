"""Survival: what is counted, what is not judged, and that the chances become those of the target."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.survival import Survival
from speculation.wire import ROOT


def chain(size: int) -> list[int]:
    return list(range(ROOT, size - 1))


def test_before_anything_was_judged_a_token_is_worth_half_of_its_parent() -> None:
    assert Survival().of(chain(3)) == [0.5, 0.25, 0.125]
    assert Survival().of([ROOT, ROOT, 0, 1]) == [0.5, 0.25, 0.25, 0.125]
    assert Survival().share == 0.5


def test_what_hangs_below_a_rejected_token_was_not_judged() -> None:
    one, other = Survival(), Survival()
    for _ in range(50):
        one.judged(chain(5), [0])
        other.judged(chain(2), [0])
    assert one.of(chain(5)) == other.of(chain(5))
    assert one.share < other.share


def test_chances_become_those_of_each_depth_and_sibling() -> None:
    """A chain whose levels are accepted with 0.9, 0.5, 0.1, then a first sibling with 0.6 and a second with 0.3."""
    rng, survival = random.Random(1), Survival()
    for _ in range(2000):
        path: list[int] = []
        for level, chance in enumerate((0.9, 0.5, 0.1)):
            if rng.random() >= chance:
                break
            path.append(level)
        survival.judged(chain(3), path)
    first, second, third = survival.of(chain(3))
    assert first == pytest.approx(0.9, abs=0.12)
    assert second / first == pytest.approx(0.5, abs=0.15)
    assert third / second == pytest.approx(0.1, abs=0.12)
    rng, survival = random.Random(2), Survival()
    for _ in range(2000):
        survival.judged([ROOT, ROOT], [[0], [1], []][rng.choices(range(3), (6, 3, 1))[0]])
    assert survival.of([ROOT, ROOT]) == pytest.approx([0.6, 0.3], abs=0.12)
    assert survival.share == pytest.approx(0.45, abs=0.1)


def test_a_session_that_is_never_verified_is_forgotten() -> None:
    survival = Survival()
    for _ in range(100):
        survival.judged(chain(4), [])
    assert survival.of(chain(1))[0] < 0.03
    for _ in range(400):
        survival.declined()
    assert survival.of(chain(1))[0] == pytest.approx(0.5, abs=0.02)


@given(st.data())
def test_chances_are_chances_and_fall_along_a_path(data: st.DataObject) -> None:
    survival = Survival()
    for _ in range(data.draw(st.integers(0, 6))):
        parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(data.draw(st.integers(1, 12)))]
        path, node = [], ROOT
        while (below := [n for n, parent in enumerate(parents) if parent == node]) and data.draw(st.booleans()):
            node = data.draw(st.sampled_from(below))
            path.append(node)
        survival.judged(parents, path)
        found = survival.of(parents)
        assert all(0.0 < chance < 1.0 for chance in (*found, survival.share))
        assert all(parent == ROOT or found[node] < found[parent] for node, parent in enumerate(parents))
