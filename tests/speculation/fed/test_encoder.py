"""The bottleneck: what training rounds is what crosses the link."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from speculation.features import pack, unpack
from speculation.fed.encoder import rounded
from tests.speculation.fed.heads import random_encoder, tiny_config


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.floats(-1000, 1000, width=32),
    )
)
def test_training_rounds_as_the_link_does(features: np.ndarray) -> None:
    crossed = unpack(pack(features), features.shape[1])
    np.testing.assert_allclose(rounded(torch.from_numpy(features)).numpy(), crossed, rtol=1e-6, atol=1e-4)


def test_every_layer_counts_whatever_its_scale() -> None:
    config = tiny_config()
    encoder = random_encoder(config)
    hidden = [torch.randn(2, config.hidden, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    found = encoder.numbers(hidden)
    assert found.shape == (2, config.size) and found.dtype == np.float32
    scaled = encoder.numbers([hidden[0], 1000.0 * hidden[1], hidden[2]])
    np.testing.assert_allclose(scaled, found, rtol=1e-3, atol=1e-4)
    for layer in range(3):
        assert not np.allclose(encoder.numbers([*hidden[:layer], -hidden[layer], *hidden[layer + 1 :]]), found)
