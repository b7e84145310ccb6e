"""Pairs of distributions, for schemes that compare a target with a draft."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from speculation.sampling import Coupled, Distribution

SIZES = st.integers(2, 24)


@st.composite
def pairs_of_distributions(draw: st.DrawFn) -> tuple[Distribution, Distribution]:
    """A target's and a draft's, from alike to strangers, with tokens that cannot be drawn."""
    size, seed = draw(SIZES), draw(st.integers(0, 2**32 - 1))
    dice = np.random.default_rng(seed)
    logits = dice.normal(0.0, draw(st.sampled_from([0.1, 2.0, 8.0])), size)
    other = logits + dice.normal(0.0, draw(st.sampled_from([0.0, 0.5, 4.0])), size)
    how = Coupled(1.0, draw(st.sampled_from([0, 2, 5])))
    return Distribution.of(logits, how), Distribution.of(other, how)
