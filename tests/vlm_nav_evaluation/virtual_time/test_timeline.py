"""Virtual time: order, sleeping, waiting, endings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from vlm_nav_evaluation.virtual_time import timeline as module
from vlm_nav_evaluation.virtual_time.timeline import Inbox, Stalled, Timeline


def test_tasks_wake_in_the_order_of_time_and_ties_in_the_order_of_planning() -> None:
    timeline, seen = Timeline(), list[tuple[float, str]]()

    def task(name: str, naps: list[float]) -> None:
        for nap in naps:
            timeline.sleep(nap)
            seen.append((timeline.clock(), name))

    timeline.run([lambda: task("a", [1.0, 1.0, 2.0]), lambda: task("b", [2.0, 0.5])])
    assert seen == [(1.0, "a"), (2.0, "b"), (2.0, "a"), (2.5, "b"), (4.0, "a")]


def test_a_task_that_is_killed_ends_where_it_waits_and_ends_no_other() -> None:
    timeline, seen = Timeline(), list[tuple[float, str]]()
    inbox: Inbox[str] = Inbox(timeline)

    def victim(wait: Callable[[float], None]) -> None:
        try:
            wait(5.0)
        except Exception:
            seen.append((timeline.now, "it must not notice"))
        finally:
            seen.append((timeline.now, "ended"))

    def killer() -> None:
        victims = [timeline.start(partial(victim, wait)) for wait in (timeline.sleep, inbox.wait)]
        timeline.sleep(1.0)
        for each in victims:
            timeline.kill(each)
        timeline.sleep(1.0)
        assert all(each.dead for each in victims)

    timeline.run([killer])
    assert seen == [(1.0, "ended")] * 2 and timeline.now == 2.0


@pytest.mark.parametrize("service", [False, True])
def test_what_a_task_or_service_raises_comes_out(service: bool) -> None:
    timeline = Timeline()

    def fail() -> None:
        timeline.sleep(1.0)
        raise ValueError("broken")

    tasks, services = ([lambda: timeline.sleep(5.0)], [fail]) if service else ([fail], [lambda: timeline.sleep(5.0)])
    with pytest.raises(ValueError, match="broken"):
        timeline.run(tasks, services)
    assert timeline.now == 1.0


def test_a_task_that_polls_without_waiting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS_PER_MOMENT", 1000)
    timeline = Timeline()
    inbox: Inbox[int] = Inbox(timeline)

    def spin() -> None:
        while True:
            inbox.take()

    with pytest.raises(Stalled, match="without waiting"):
        timeline.run([spin])
