"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 120.0


def wait_for(condition: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
