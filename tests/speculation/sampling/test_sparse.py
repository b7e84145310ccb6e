"""Heads with tails: what the edge samples of them is what it would sample of the whole."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Distribution, Split
from speculation.sampling.masses import head, pack, unpack
from speculation.sampling.rejection import draw_rest
from speculation.sampling.sparse import draw_from_head
from tests.speculation.sampling.distributions import pairs_of_distributions

SPLIT = Split(1.0)


@given(pairs_of_distributions(), st.integers(1, 30), st.binary(min_size=8, max_size=8))
def test_a_head_draws_what_the_whole_draws_or_nothing(
    pair: tuple[Distribution, Distribution], keep: int, digest: bytes
) -> None:
    target, draft = pair
    masses = pack(target, keep)
    received = unpack(masses, len(target.weights)) if not masses.tail else None
    wanted = draw_rest(target, draft, digest, keep)
    if received is not None:
        assert draw_rest(received, draft, digest, keep) == wanted
    else:
        assert draw_from_head(masses, draft, digest) in (None, wanted)


def test_the_tail_is_seldom_needed() -> None:
    dice = np.random.default_rng(0)
    logits = dice.normal(0.0, 4.0, 200)
    target = Distribution.of(logits, SPLIT)
    draft = Distribution.of(logits + dice.normal(0.0, 0.5, 200), SPLIT)
    masses = pack(target, 32)
    found = [draw_from_head(masses, draft, struct.pack("<Q", key)) for key in range(500)]
    fetched = found.count(None) / len(found)
    rest = np.maximum(target.row - draft.row, 0.0)
    tail = rest.sum() - rest[head(target, 32)].sum()
    assert 0.0 < tail / rest.sum() <= fetched + 0.02
    assert fetched < masses.tail / rest[head(target, 32)].sum() + 0.05
