"""Tokens a verification, against drafting token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters_training.fed_head.acceptance import Tally


@given(st.integers(1, 4), st.integers(1, 12), st.data())
def test_it_is_a_walk_along_the_answer(gamma: int, count: int, data: st.DataObject) -> None:
    """The twin drafts one token after another, and the verdict adds one of its own, as long as there is room."""
    hits = [np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))) for _ in range(gamma)]
    tally = Tally(gamma)
    tally.add(hits)
    committed = verifications = drafted = 0
    while committed < count:
        verifications += 1
        place = committed
        for depth in range(gamma):
            if place >= count - 1:
                break
            drafted += 1
            if not hits[depth][place]:
                drafted += min(gamma, count - committed - 1) - depth - 1
                break
            place += 1
        committed = place + 1
    assert (tally.verifications, tally.tokens, tally.drafted) == (verifications, count, drafted)
    assert tally.accepted == count - verifications
    assert tally.tau == pytest.approx(count / verifications)
