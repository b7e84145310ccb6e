"""A prefill beside the loop: who looks, who waits, and that it has always ended when its caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from edge_drafter.background import Background
from speculation.cancellation import Abandoned, Stop


def ended(work: Callable[[Stop], int]) -> tuple[Callable[[Stop], int], threading.Event]:
    """Return work that notes its end."""
    over = threading.Event()

    def noting(stop: Stop) -> int:
        try:
            return work(stop)
        finally:
            over.set()

    return noting, over


def until_stopped(stop: Stop) -> int:
    while not stop():
        pass
    raise Abandoned


@pytest.mark.parametrize("fails", [False, True])
def test_who_does_not_want_it_any_more_goes_on_when_it_has_ended(fails: bool) -> None:
    beside = Background()
    work, over = ended(until_stopped)

    def look() -> bool:
        if fails:
            raise ConnectionError("lost")
        return True

    with pytest.raises(ConnectionError if fails else Abandoned):
        beside.run(work, look)
    assert over.is_set()
    beside.close()
