"""What goes up in one copy is what was given, whatever its shapes, and what comes down is what was there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from speculation.vlm.transfer import Array, Download, beside, upload
from tests import devices

DEVICES = ["cpu", f"{devices.KIND}:0", pytest.param("cuda", marks=pytest.mark.gpu)]
PARTS = st.dictionaries(
    st.sampled_from("abcde"),
    st.sampled_from([np.int64, np.bool_, np.float64, np.int32]).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=5,
)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40)
@given(parts=PARTS)
def test_parts_arrive_as_they_are(device: str, parts: dict[str, Array]) -> None:
    found = upload(parts, torch.device(device))
    assert found.keys() == parts.keys()
    for name, part in parts.items():
        assert found[name].device.type == torch.device(device).type
        np.testing.assert_array_equal(Download(found[name]).numpy(), part)
        assert found[name].shape == part.shape


def test_they_go_up_in_one_copy_and_down_in_one() -> None:
    devices.copies.clear()
    place = torch.device(f"{devices.KIND}:0")
    found = upload({"ids": np.arange(3), "mask": np.ones((2, 5), dtype=np.bool_), "slots": np.arange(4)}, place)
    assert devices.copies == [(torch.device("cpu"), place)]
    Download(found["ids"] + found["slots"][:3])
    assert devices.copies[1:] == [(place, torch.device("cpu"))]


@pytest.mark.gpu
def test_a_side_stream_runs_behind_what_was_given_before() -> None:
    place = torch.device("cuda")
    values = torch.ones(1 << 22, device=place)
    for _ in range(50):
        values = values * 1.0 + 1.0
    with beside(place):
        coming = Download(values[:4])
    values.mul_(1.0)
    assert coming.numpy().tolist() == [51.0] * 4 and coming.is_ready
