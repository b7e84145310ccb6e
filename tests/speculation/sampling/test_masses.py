"""Distributions and their heads as they travel."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Distribution
from speculation.sampling.masses import head, pack, unpack
from speculation.wire import Masses
from tests.speculation.sampling.distributions import pairs_of_distributions


@given(pairs_of_distributions(), st.integers(0, 30))
def test_a_distribution_travels_to_the_last_bit(pair: tuple[Distribution, Distribution], keep: int) -> None:
    target, _ = pair
    masses = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(target, keep)), type=Masses)
    if masses.tail:
        assert 0.0 < masses.tail < 1.0 and len(masses.weights) == 4 * len(head(target, keep))
    else:
        assert (unpack(masses, len(target.weights)).row == target.row).all()


@given(pairs_of_distributions(), st.integers(1, 30))
def test_the_head_is_the_likeliest_tokens_of_equals_the_lower(
    pair: tuple[Distribution, Distribution], keep: int
) -> None:
    weights = np.round(pair[0].weights, 1)
    order = np.argsort(-weights, kind="stable")[:keep]
    assert head(Distribution(weights, 1.0), keep).tolist() == sorted(order[weights[order] > 0.0].tolist())
