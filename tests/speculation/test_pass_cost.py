"""Loads add up over rows as the paper's sums do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculation.pass_cost import Load, PassCost

rows = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 4000)), max_size=8)


@given(rows)
def test_a_load_is_the_sums_of_the_paper(parts: list[tuple[int, int]]) -> None:
    load = Load.total(Load.row(new, cached) for new, cached in parts)
    assert load.rows == len(parts)
    assert load.new == sum(new for new, _ in parts)
    assert load.interactions == sum((cached + new) * new for new, cached in parts)
    assert load.cached == sum(cached for _, cached in parts)


def test_a_pass_costs_what_its_terms_cost() -> None:
    cost = PassCost(token_s=1e-3, interaction_s=1e-6, cached_s=1e-5, constant_s=0.02)
    load = Load.row(5, 100) + Load.row(1, 0)
    assert cost.seconds(load) == 6 * 1e-3 + (105 * 5 + 1) * 1e-6 + 100 * 1e-5 + 0.02
