"""Our M-RoPE positions are transformers' own, wherever the images stand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.vlm.model import Vlm
from speculation.vlm.positions import mrope_positions


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3)), max_size=4), st.integers(0, 4))
def test_positions_around_images_equal_get_rope_index(
    target: Vlm, images: list[tuple[int, int, int]], before: int
) -> None:
    ids, grids = [5] * before, []
    for rows, columns, words in images:
        grids.append((1, 2 * rows, 2 * columns))
        ids += [target.image_token] * (rows * columns) + [6] * words
    positions, delta = mrope_positions(np.array(ids, dtype=np.int64), target.image_token, grids, merge=2)
    if not ids:
        assert positions.shape == (3, 0) and delta == 0
        return
    tokens = torch.tensor([ids])
    expected, expected_delta = target.model.model.get_rope_index(
        tokens, (tokens == target.image_token).int(), image_grid_thw=torch.tensor(grids) if grids else None
    )
    np.testing.assert_array_equal(positions, expected[:, 0].numpy())
    assert delta == int(expected_delta)


@pytest.mark.parametrize(
    ("ids", "images", "sentence"),
    [
        ([9, 9, 1, 9, 9], 1, "needs 4 in one run"),
        ([9] * 5, 1, "needs 4 in one run"),
        ([9] * 5 + [1] + [9] * 3, 2, r"need 4 \+ 4 in one run each"),
        ([9] * 4, 2, r"need 4 \+ 4 in one run each"),
    ],
)
def test_runs_of_image_tokens_that_do_not_fit_their_images_are_refused(
    ids: list[int], images: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        mrope_positions(np.array(ids, dtype=np.int64), 9, [(1, 4, 4)] * images, 2)
