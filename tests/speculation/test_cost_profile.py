"""A profile's file comes back as it was, and one that cannot be used is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculation.cost_profile import COST_FILE, CostProfile, Quality, load_cost, load_cost_profile
from speculation.pass_cost import PassCost

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
