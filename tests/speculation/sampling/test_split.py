"""Split rejection sampling: what goes up and down, and what the edge makes of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Distribution, Split
from speculation.sampling.masses import unpack
from speculation.sampling.rejection import draw_rest
from speculation.wire import Masses
from tests.speculation.sampling.distributions import pairs_of_distributions

SPLIT = Split(1.0)


@given(pairs_of_distributions(), st.binary(min_size=8, max_size=8))
def test_the_edge_samples_what_follows_out_of_the_whole_distribution(
    pair: tuple[Distribution, Distribution], digest: bytes
) -> None:
    target, draft = pair
    rest = SPLIT.rest(target)
    assert rest.part == rest.whole and (unpack(rest.part, len(target.weights)).row == target.row).all()
    token = SPLIT.finish(msgspec.msgpack.decode(msgspec.msgpack.encode(rest.part), type=Masses), draft, digest)
    assert token == draw_rest(target, draft, digest) and rest.allows(token)


def test_a_token_that_the_target_never_says_was_not_sampled() -> None:
    rest = SPLIT.rest(Distribution(np.array([0.5, 0.0, 0.5], dtype=np.float32), 1.0))
    assert [rest.allows(token) for token in range(3)] == [True, False, True]


def test_a_part_is_not_enough() -> None:
    draft = Distribution(np.array([0.5, 0.5], dtype=np.float32), 1.0)
    with pytest.raises(ValueError, match="this is a part of a distribution"):
        SPLIT.finish(Masses(np.float32(1.0).tobytes(), 2.0, np.uint32(0).tobytes(), 0.5), draft, bytes(8))
