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


class Queue:
    """A thread's wait for its processor, of all the time that passes by its clock."""

    def __init__(self, share: float) -> None:
        self.share, self.now = share, 0.0

    def clock(self) -> float:
        self.now += 0.01
        return self.now

    def queued(self) -> float:
        self.now += 0.01
        return self.share * self.now


@pytest.mark.parametrize(
    ("yields", "share", "hurried", "stands"),
    [
        (True, 1.0, False, True),
        (True, 0.2, False, False),
        (True, 1.0, True, False),
        (False, 1.0, False, False),
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_work_that_yields_stands_still_where_it_shares_a_processor(
    yields: bool, share: float, hurried: bool, stands: bool, wanted: bool
) -> None:
    queue = Queue(share)
    beside = Background(yields, queue.queued, queue.clock)
    done, looks = list[int](), [0]

    def work(stop: Stop) -> int:
        for layer in range(4):
            if stop():
                raise Abandoned
            done.append(layer)
        return len(done)

    def look() -> bool:
        looks[0] += 1
        if hurried:
            beside.hurry()
        if not stands or looks[0] != 5:
            return False
        assert not done, "it goes on when it is allowed to, or is over"
        beside.hurry()
        return not wanted

    if stands and not wanted:
        with pytest.raises(Abandoned):
            beside.run(work, look)
    else:
        assert beside.run(work, look) == 4
    assert hurried or beside.crowded is stands
    assert done == ([] if stands and not wanted else [0, 1, 2, 3])
    beside.hurry()
    assert beside.run(lambda stop: stop(), lambda: (beside.hurry(), False)[1]) is False, "nothing is left of the last"
    assert not beside.crowded
    beside.close()
