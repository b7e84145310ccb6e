"""Features as bytes: what comes out is what went in, to half a level; what is no feature is refused."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from speculation.features import LEVELS, MAX_SIZE, SCALE_BYTES, pack, unpack

matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.integers(1, MAX_SIZE)),
    elements=st.floats(-(2**26), 2**26, width=32) | st.floats(-2, 2, width=32),
)


def slowly(features: npt.NDArray[np.float32]) -> bytes:
    """Pack token by token, number by number, from the definition."""
    packed = b""
    for row in features:
        scale = np.float32(np.abs(row).max()) / np.float32(LEVELS)
        scale = np.float32(0) if scale < np.finfo(np.float32).tiny else scale
        levels = [0 if scale == 0 else round(float(np.float32(x) / scale)) for x in row]
        packed += struct.pack(f"<f{len(row)}b", scale, *levels)
    return packed


@given(matrices)
def test_numbers_survive_to_half_a_level(features: npt.NDArray[np.float32]) -> None:
    packed = pack(features)
    assert packed == slowly(features)
    assert len(packed) == len(features) * (SCALE_BYTES + features.shape[1])
    found = unpack(packed, features.shape[1])
    assert found.shape == features.shape and found.dtype == np.float32
    largest = np.abs(features).max(axis=1, initial=0.0).astype(np.float64)
    bound = np.maximum(largest / LEVELS * 0.5001, LEVELS * float(np.finfo(np.float32).tiny))
    assert (np.abs(found.astype(np.float64) - features) <= bound[:, None]).all()


@pytest.mark.parametrize("size", [0, MAX_SIZE + 1])
def test_sizes_have_limits(size: int) -> None:
    with pytest.raises(ValueError, match=f"there are 1 to {MAX_SIZE}"):
        pack(np.ones((1, size), np.float32))
    with pytest.raises(ValueError, match=f"there are 1 to {MAX_SIZE}"):
        unpack(b"", size)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e9])
def test_numbers_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        pack(np.array([[1.0, wrong]], np.float32))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 2e6])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"not in 0\.\.1\.04858e\+06"):
        unpack(struct.pack("<f2b", scale, 1, 2), 2)


@given(st.binary(max_size=300), st.integers(1, MAX_SIZE))
def test_any_bytes_are_finite_features_or_refused(packed: bytes, size: int) -> None:
    try:
        found = unpack(packed, size)
    except ValueError:
        return
    assert found.shape == (len(packed) // (SCALE_BYTES + size), size) and np.isfinite(found).all()
