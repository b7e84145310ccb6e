"""The walk by picked tokens, and the trees that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from speculation.acceptance import depths_of, expected_tokens, judge_picks, walk_rows
from speculation.distributions import Logits
from tests.speculation.trees import judged_drafts


def last(row: Logits, depth: int) -> tuple[int, float]:
    """Pick the last of the likeliest columns at even depths, the first at odd ones."""
    columns = np.flatnonzero(row == row.max())
    return int(columns[-1 if depth % 2 == 0 else 0]), 0.5


@given(judged_drafts())
def test_tokens_picked_beforehand_lead_where_the_walk_leads(draft: tuple[list[int], list[int], Logits]) -> None:
    tokens, parents, logits = draft
    picks = [last(row, depth) for row, depth in zip(logits, depths_of(parents), strict=True)]
    verdict = walk_rows(tokens, parents, logits, last)
    assert judge_picks(tokens, parents, picks) == verdict
    assert verdict.confidence == 0.5 ** (len(verdict.path) + 1)


def test_each_row_is_as_deep_as_its_node() -> None:
    assert depths_of([]) == [0] and depths_of([-1, 0, 0, -1, 2]) == [0, 1, 2, 2, 1, 3]


@pytest.mark.parametrize(
    ("tokens", "parents", "rows", "sentence"),
    [
        ([1], [-1], 1, "are no draft tree"),
        ([1], [], 2, "1 tokens but 0 parents"),
        ([1, 1], [-1, 1], 3, "parent 1 of node 1 must be in -1..0"),
        ([1], [-2], 2, "parent -2 of node 0"),
    ],
)
def test_malformed_trees_are_refused(tokens: list[int], parents: list[int], rows: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        walk_rows(tokens, parents, np.zeros((rows, 2)), last)


def test_picks_that_are_not_one_a_row_are_refused() -> None:
    with pytest.raises(ValueError, match="1 picks for 1 tokens; give one more than tokens"):
        judge_picks([1], [-1], [(1, 0.5)])
    with pytest.raises(ValueError, match="logits after node -1 are not finite"):
        judge_picks([1], [-1], [(1, np.nan), (1, 0.5)])


def test_expected_tokens_count_the_target_s_own() -> None:
    assert [expected_tokens(0.5, depth) for depth in range(3)] == [1.0, 1.5, 1.75]
