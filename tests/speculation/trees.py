"""Draft trees, alone and with logits for schemes to judge."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from speculation.sampling import Logits

VOCABULARY = 4


@st.composite
def trees(draw: st.DrawFn, tokens: int = 300, least: int = 0, most: int = 8) -> tuple[list[int], list[int]]:
    """Tokens and parents of a random draft; -1 is the root."""
    drawn = draw(st.lists(st.integers(0, tokens - 1), min_size=least, max_size=most))
    return drawn, [draw(st.integers(-1, node - 1)) for node in range(len(drawn))]


@st.composite
def judged_drafts(draw: st.DrawFn) -> tuple[list[int], list[int], Logits]:
    """A random tree over a tiny vocabulary and logits of few levels, so that ties and doubled siblings happen."""
    tokens, parents = draw(trees(VOCABULARY, most=9))
    row = st.lists(st.integers(-2, 2).map(float), min_size=VOCABULARY, max_size=VOCABULARY)
    rows = draw(st.lists(row, min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    return tokens, parents, np.array(rows)
