"""The estimator learns from uneven passes, never a negative time, and claims less where it has seen less."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.estimator import WINDOW, Estimator
from speculation.pass_cost import Load, PassCost

PROFILE = PassCost(token_s=2.5e-4, interaction_s=1.2e-7, cached_s=1e-6, constant_s=4e-3)
passes = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 70), st.integers(0, 3000), st.floats(0.0, 10.0)), max_size=40
)


@given(
    passes,
    st.sampled_from([None, PROFILE, replace(PROFILE, causal=True)]),
    st.integers(1, 8),
    st.integers(1, 600),
    st.data(),
)
def test_a_prediction_is_never_negative_and_grows_with_every_term(
    seen: list[tuple[int, int, int, float]], profile: PassCost | None, rows: int, new: int, data: st.DataObject
) -> None:
    times = Estimator(profile)
    for each in seen:
        times.observe(Load.row(each[1], each[2]) + Load(rows=each[0] - 1), each[3])
    assert times.known is (bool(seen) or profile is not None) and times.spread >= 0.0
    load = Load.row(new)._replace(rows=rows)
    more = Load(**{each: data.draw(st.integers(0, 5000), label=each) for each in Load._fields})
    assert 0.0 <= times.seconds(load) <= times.seconds(load + more)


def traffic(rng: random.Random, count: int = WINDOW) -> list[Load]:
    """Passes of a server with several robots: decodes, verifications and chunks of a prefill, of unlike contexts."""
    loads = []
    for _ in range(count):
        rows = [Load.row(rng.choice([1, 1, 5, 9]), rng.randint(100, 1500)) for _ in range(rng.randint(1, 6))]
        chunk = [Load.row(rng.choice([64, 256]), rng.choice([0, 256, 512]))] if rng.random() < 0.2 else []
        loads.append(Load.total(rows + chunk))
    return loads


def feed(times: Estimator, cost: PassCost, loads: list[Load], rng: random.Random, noise: float = 0.0) -> None:
    for load in loads:
        slow = 8.0 if noise and rng.random() < 0.03 else 1.0
        times.observe(load, slow * rng.uniform(1.0 - noise, 1.0 + noise) * cost.seconds(load))


def off_by(times: Estimator, cost: PassCost, loads: list[Load]) -> float:
    """Mean share by which predictions miss."""
    return sum(abs(times.seconds(load) / cost.seconds(load) - 1.0) for load in loads) / len(loads)


def test_all_terms_are_learned_from_loads_that_tell_them_apart() -> None:
    rng = random.Random(2)
    even, uneven = Estimator(), Estimator()
    feed(even, PROFILE, traffic(rng), rng)
    feed(uneven, PROFILE, traffic(rng), rng, noise=0.05)
    new = traffic(rng)
    assert off_by(even, PROFILE, new) < 0.02
    assert off_by(uneven, PROFILE, new) < 0.06
    for cached in (0, 300, 1500):  # what no line in the tokens can know
        assert even.seconds(Load.row(1, cached)) == pytest.approx(PROFILE.seconds(Load.row(1, cached)), rel=0.02)
