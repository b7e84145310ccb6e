"""The configurations are those of the paper's Appendix C, and stay apart."""

from __future__ import annotations

import pytest

from adapters_training.verifier_profile.configurations import Configuration, fitted, held_out, training
from speculation.pass_cost import Load


def test_they_have_the_papers_numbers_and_the_test_is_unseen() -> None:
    every = training()
    assert (len(every), len(held_out())) == (123, 50)
    assert held_out() == held_out() and training() == training() and not set(held_out()) & set(every)
    grid = every[25:73]
    assert len(set(grid)) == 48 and {each.load.rows for each in grid} == {1, 4}
    assert {each.rows[0][0] for each in grid} == {1, 5, 10, 20, 50, 100}
    assert {sum(each.rows[0]) for each in grid} == {500, 1000, 1500, 2000}
    for each in [*every, *held_out()]:
        assert all(new >= 1 and cached >= 0 for new, cached in each.rows) and each.longest <= 2000


@pytest.mark.parametrize("longest", [100, 1000, 2000, 4000])
def test_a_small_context_shortens_all_alike(longest: int) -> None:
    found = fitted(training(), longest)
    assert max(each.longest for each in found) <= longest
    assert (found == training()) is (longest >= 2000)


def test_a_configurations_load_is_its_rows() -> None:
    found = Configuration(((5, 100), (40, 0)))
    assert found.load == Load.row(5, 100) + Load.row(40) and found.longest == 105
    assert found.scaled(0.1).rows == ((1, 10), (4, 0))
