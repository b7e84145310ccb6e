"""The configurations are those of the paper's Appendix C, and stay apart."""

from __future__ import annotations

from collections import Counter

import pytest

from adapters_training.verifier_profile.configurations import Configuration, Kind, fitted, held_out, training
from speculation.pass_cost import Load


def test_training_has_the_papers_numbers() -> None:
    every = training()
    assert Counter(each.kind for each in every) == {Kind.COMPUTE: 25 + 15, Kind.MEMORY: 48 + 15, Kind.MIXED: 20}
    grid = every[25:73]
    assert len(set(grid)) == 48
    assert {each.load.rows for each in grid} == {1, 4}
    assert {each.rows[0][0] for each in grid} == {1, 5, 10, 20, 50, 100}
    assert {sum(each.rows[0]) for each in grid} == {500, 1000, 1500, 2000}


def test_kinds_are_what_they_are_called() -> None:
    for each in [*training(), *held_out()]:
        cached = [row[1] for row in each.rows]
        assert all(new >= 1 and kept >= 0 for new, kept in each.rows) and each.longest <= 2000
        if each.kind is Kind.COMPUTE:
            assert not any(cached) and 1195 <= each.load.new <= 2000
        elif each.kind is Kind.MEMORY:
            assert all(kept >= 400 for kept in cached) and max(new for new, _ in each.rows) <= 100
        else:
            assert any(cached) and not all(cached)


def test_the_test_is_unseen_and_always_the_same() -> None:
    assert len(held_out()) == 50 and held_out() == held_out() and training() == training()
    assert not set(held_out()) & set(training())


@pytest.mark.parametrize("longest", [100, 1000, 2000, 4000])
def test_a_small_context_shortens_all_alike(longest: int) -> None:
    every = training()
    found = fitted(every, longest)
    assert max(each.longest for each in found) <= longest
    assert (found == every) is (longest >= 2000)
    assert [each.kind for each in found] == [each.kind for each in every]


def test_a_configurations_load_is_its_rows() -> None:
    found = Configuration(Kind.MIXED, ((5, 100), (40, 0)))
    assert found.load == Load.row(5, 100) + Load.row(40) and found.longest == 105
    assert found.scaled(0.1).rows == ((1, 10), (4, 0))
