"""Waits for what another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 20.0


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)
