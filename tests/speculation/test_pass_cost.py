"""Loads add up over rows as the paper's sums do, a cost is found again from passes that it took, and from its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.pass_cost import (
    COST_FILE,
    CostProfile,
    Load,
    PassCost,
    Quality,
    load_cost,
    load_cost_profile,
    nonnegative_least_squares,
)

rows = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 4000)), max_size=8)


@given(rows)
def test_a_load_is_the_sums_of_the_paper(parts: list[tuple[int, int]]) -> None:
    load = Load.total(Load.row(new, cached) for new, cached in parts)
    assert load.rows == len(parts)
    assert load.new == sum(new for new, _ in parts)
    assert load.interactions == sum((cached + new) * new for new, cached in parts)
    assert load.cached == sum(cached for _, cached in parts)
    assert load.scored == sum(cached + place for new, cached in parts for place in range(1, new + 1))


costs = st.builds(
    PassCost,
    st.floats(1e-5, 1e-3),
    st.one_of(st.just(0.0), st.floats(1e-9, 1e-6)),
    st.one_of(st.just(0.0), st.floats(1e-7, 1e-5)),
    st.floats(1e-3, 0.1),
    st.booleans(),
)
PASSES = [
    Load.total([Load.row(new, cached)] * batch) for new in (1, 5, 40) for cached in (0, 300, 1500) for batch in (1, 4)
]


@given(costs)
def test_a_cost_is_found_from_its_own_passes(cost: PassCost) -> None:
    found = PassCost.fit(PASSES, [cost.seconds(load) for load in PASSES], cost.causal)
    for load in [*PASSES, Load.row(1000), Load.row(100, 2000)]:
        assert found.seconds(load) == pytest.approx(cost.seconds(load), rel=1e-6)


@pytest.mark.parametrize("times", [[], [0.0] * len(PASSES), [1.0]])
def test_passes_that_fit_nothing_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="passes"):
        PassCost.fit(PASSES if times else [], times)


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 9))
def test_no_step_away_from_the_answer_fits_better(seed: int, width: int, height: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(height, width)) * rng.choice([0.0, 1.0, 100.0], width, p=[0.1, 0.6, 0.3])
    values = rng.normal(size=height)
    found = nonnegative_least_squares(columns, values)
    assert found.min() >= 0.0
    # The conditions of Karush, Kuhn and Tucker, which only the optimum meets: no column that is held at 0 could lower
    # the error, none that is used could go on.
    slope = columns.T @ (columns @ found - values)
    scale = np.linalg.norm(columns, axis=0) * np.linalg.norm(values) + 1e-12
    assert (slope / scale >= -1e-7).all()
    assert np.abs(slope * found / (scale * (1.0 + np.abs(found)))).max() <= 1e-7


QUALITY = Quality(samples=50, r2=0.995, adjusted_r2=0.994, rmse_s=2e-3, mae_s=1e-3, mape=0.03, max_error_s=9e-3)
PROFILE = CostProfile(
    fingerprint="f" * 16,
    name="target",
    dtype="float32",
    device="cpu",
    attention="sdpa",
    threads=1,
    machine="a machine",
    clock="processor",
    longest=2000,
    runs=3,
    cost=PassCost(2.5e-4, 1.2e-7, 1e-6, 4e-3),
    train=QUALITY,
    test=QUALITY,
)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / COST_FILE)
    assert load_cost_profile(tmp_path / COST_FILE) == PROFILE
    assert load_cost(str(tmp_path)) == load_cost(str(tmp_path / COST_FILE)) == PROFILE.cost


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cost", "cached_s"), -1.0),
        (("test", "mape"), None),
        (("colour",), "red"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    file = tmp_path / COST_FILE
    PROFILE.save(file)
    held = json.loads(file.read_text())
    part = held
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    file.write_text(json.dumps(held))
    with pytest.raises(ValueError, match=path[-1]) as caught:
        load_cost_profile(file)
    assert str(file) in str(caught.value)


def test_what_is_no_file_or_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / COST_FILE).write_text("{")
    for path in (tmp_path / COST_FILE, tmp_path / "none.json"):
        with pytest.raises(ValueError, match=path.name):
            load_cost_profile(path)


@pytest.mark.parametrize(
    ("loaded", "word"),
    [
        (("f" * 16, "float32", "cpu"), ""),
        (("e" * 16, "float32", "cpu"), "model"),
        (("f" * 16, "bfloat16", "cpu"), "bfloat16"),
        (("f" * 16, "float32", "cuda:0"), "cuda"),
    ],
)
def test_it_fits_its_own_model_dtype_and_device(loaded: tuple[str, str, str], word: str) -> None:
    problem = PROFILE.fits(*loaded)
    assert (word in problem) if word else not problem
