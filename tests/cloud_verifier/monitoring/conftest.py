"""A clock that is set by hand."""

from __future__ import annotations

import pytest


class Clock:
    """Seconds that stand still until a test moves them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at 100 s."""
    return Clock()
