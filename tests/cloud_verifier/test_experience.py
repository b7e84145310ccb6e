"""A session's pace, and what its acts leave behind."""

from __future__ import annotations

import pytest

from cloud_verifier.experience import Pace, Part

OWN = Part(4, 3.0, 1.0)


def test_the_pace_begins_as_that_of_drafting_here_and_is_never_below_it() -> None:
    pace = Pace()
    assert pace.rate(OWN) == 3.0
    for turn in range(100):
        pace.committed("verify", 5, float(turn))
    assert pace.rate(OWN) == pytest.approx((5.0 * 32 + 3.0 * 8) / (32 + 8), rel=0.05)
    for turn in range(100, 300):
        pace.committed("decode", 1, float(turn))
    assert pace.rate(OWN) == 3.0
