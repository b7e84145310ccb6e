"""The point-mass rule: the target's samples, the draft's likeliest tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Coupled, Logits, Point, StepDraws
from tests.speculation.sampling.trees import judged_drafts


@given(judged_drafts(), st.floats(0.01, 4.0), st.integers(0, 4), st.integers(0, 2**63 - 1))
def test_the_target_samples_as_if_coupled(
    draft: tuple[list[int], list[int], Logits], temperature: float, top_k: int, key: int
) -> None:
    point, coupled = Point(temperature, top_k), Coupled(temperature, top_k)
    assert point.judge(*draft, StepDraws(key, 3)) == coupled.judge(*draft, StepDraws(key, 3))
    assert point.alone == coupled


def test_a_token_is_accepted_as_often_as_the_target_has_it() -> None:
    logits = np.log([[0.2, 0.8], [0.5, 0.5]])
    stood = sum(Point(1.0).judge([0], [-1], logits, StepDraws(key)).path == (0,) for key in range(2000))
    assert abs(stood / 2000 - 0.2) < 0.03
