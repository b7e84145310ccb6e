"""Draft trees with logits, for schemes to judge."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from speculation.sampling import Logits

VOCABULARY = 4


@st.composite
def judged_drafts(draw: st.DrawFn) -> tuple[list[int], list[int], Logits]:
    """A random tree over a tiny vocabulary and logits of few levels, so that ties and doubled siblings happen."""
    count = draw(st.integers(0, 9))
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    level = st.integers(-2, 2).map(float)
    rows = draw(
        st.lists(st.lists(level, min_size=VOCABULARY, max_size=VOCABULARY), min_size=count + 1, max_size=count + 1)
    )
    return tokens, parents, np.array(rows)
