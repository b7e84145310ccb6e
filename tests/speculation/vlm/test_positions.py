"""Our M-RoPE positions are transformers' own, wherever the images stand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.vlm.model import Vlm
from speculation.vlm.positions import image_token_count, mrope_positions


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(0, 9),
    after=st.integers(0, 9),
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    time=st.integers(1, 2),
)
def test_equal_to_get_rope_index(target: Vlm, before: int, after: int, rows: int, columns: int, time: int) -> None:
    grid = (time, 2 * rows, 2 * columns)
    ids = np.array([5] * before + [target.image_token] * (time * rows * columns) + [6] * after, dtype=np.int64)
    positions, delta = mrope_positions(ids, target.image_token, [grid], merge=2)

    tokens = torch.from_numpy(ids)[None]
    expected, expected_delta = target.model.model.get_rope_index(
        tokens, (tokens == target.image_token).int(), image_grid_thw=torch.tensor([grid])
    )
    np.testing.assert_array_equal(positions, expected[:, 0].numpy())
    assert delta == int(expected_delta)


@pytest.mark.parametrize("ids", [[1, 9, 9, 9, 2], [9, 9, 1, 9, 9], [1, 2], [9] * 5])
def test_refuses_image_tokens_that_do_not_fit_the_grid(ids: list[int]) -> None:
    assert image_token_count((1, 4, 4), 2) == 4
    with pytest.raises(ValueError, match="needs 4 in one run"):
        mrope_positions(np.array(ids, dtype=np.int64), 9, [(1, 4, 4)], 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), max_size=4), st.integers(0, 4))
def test_several_images_equal_get_rope_index(target: Vlm, images: list[tuple[int, int, int]], before: int) -> None:
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


@pytest.mark.parametrize("ids", [[9] * 4 + [1] + [9] * 5, [9] * 5 + [1] + [9] * 3, [9] * 4])
def test_refuses_runs_that_do_not_fit_their_images(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"need 4 \+ 4 in one run each"):
        mrope_positions(np.array(ids, dtype=np.int64), 9, [(1, 4, 4), (1, 4, 4)], 2)
