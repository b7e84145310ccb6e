"""What drafts of the verifier's own are worth: by the draft model's probabilities, calibrated by verdicts."""

from __future__ import annotations

import random
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.server_draft.value import OWN_DEPTH, ServerDraftValue
from cloud_verifier.tree import Tree


def chain(chances: list[float]) -> Tree:
    """Return a chain whose tokens the draft model takes for right with these chances, each behind the one before."""
    reach = [prod(chances[: level + 1]) for level in range(len(chances))]
    return Tree.own(range(len(chances)), range(-1, len(chances) - 1), reach)


def accepted(tree_chances: list[float], rng: random.Random) -> int:
    count = 0
    while count < len(tree_chances) and rng.random() < tree_chances[count]:
        count += 1
    return count


def taught(claimed: list[float], true: list[float], drafts: int = 300) -> ServerDraftValue:
    """Return what so many drafts have taught, whose tokens are right with other chances than the draft model claims."""
    own, rng = ServerDraftValue(), random.Random(5)
    for _ in range(drafts):
        own.drafted(chain(claimed))
        own.judged(chain(claimed), accepted(true, rng))
    return own


@pytest.mark.parametrize("true", [0.3, 0.6, 0.9])
def test_what_it_claims_is_calibrated_at_every_level(true: float) -> None:
    own = taught([0.8] * 4, [true] * 4)
    best = [1.0 + sum(true**level for level in range(1, depth + 1)) for depth in range(5)]
    assert own.expected(chain([0.8] * 4)) == pytest.approx(best, rel=0.12)
    assert own.gains(4) == pytest.approx(best[1:], rel=0.12)


@given(
    chances=st.lists(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=OWN_DEPTH), min_size=1, max_size=20),
    seed=st.integers(0, 99),
)
def test_deeper_drafts_never_bring_less_and_a_level_never_more_than_one_token(
    chances: list[list[float]], seed: int
) -> None:
    own, rng = ServerDraftValue(), random.Random(seed)
    for each in chances:
        own.drafted(chain(each))
        own.judged(chain(each), rng.randint(0, len(each)))
    gains = [1.0, *own.gains(OWN_DEPTH)]
    levels = [later - before for before, later in pairwise(gains)]
    assert len(levels) == OWN_DEPTH and all(-1e-9 <= level <= 1.0 + 1e-9 for level in levels)
    assert all(later <= before + 1e-9 for before, later in pairwise(levels))
