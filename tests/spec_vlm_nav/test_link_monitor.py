"""Who may decide while the link comes and goes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_drafter.question import VerifierLost, VerifierRefused
from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.link_monitor import GRACE_S, LinkLimits, LinkMode, LinkMonitor, link_status, meet

STATES = ["nominal", "silent", "connecting", "busy", "refused"]


def run(monitor: LinkMonitor, *parts: tuple[str, float], start: float = 100.0) -> list[LinkMode]:
    """Modes after each part, (state, seconds), looked at every 20 ms."""
    now, found = start, []
    for state, seconds in parts:
        for _ in range(round(seconds / 0.02)):
            now += 0.02
            monitor.update(state, now)
        found.append(monitor.mode)
    return found


def test_a_lost_link_is_degraded_then_hold_and_back_after_it_has_been_up_for_a_while() -> None:
    monitor = LinkMonitor(LinkLimits(degraded_s=20.0, recover_s=1.0))
    assert run(monitor, ("nominal", 5.0), ("silent", 19.0), ("silent", 2.0), ("nominal", 0.5), ("nominal", 1.0)) == [
        LinkMode.NOMINAL, LinkMode.DEGRADED, LinkMode.HOLD, LinkMode.HOLD, LinkMode.NOMINAL,
    ]  # fmt: skip


def test_a_full_verifier_is_lost_where_it_asks_to_wait_for_long() -> None:
    monitor = LinkMonitor(LinkLimits())
    modes = run(monitor, ("nominal", 1.0), ("busy", GRACE_S - 0.1), ("nominal", 1.0), ("busy", 1.2), ("nominal", 1.5))
    assert modes == [LinkMode.NOMINAL] * 3 + [LinkMode.DEGRADED, LinkMode.NOMINAL]
    full = link_status("the verifier is full; trying again in 2.3 s", "busy", 0.02, LinkMode.DEGRADED)
    assert full.level is Level.WARN and full.values["state"] == "busy" and "in 2.3 s" in full.message


def test_a_draft_model_that_does_not_see_never_decides_alone() -> None:
    alarm = [False]
    monitor = LinkMonitor(LinkLimits(), lambda: alarm[0])
    assert run(monitor, ("nominal", 1.0), ("silent", 1.0))[-1] is LinkMode.DEGRADED
    alarm[0] = True
    modes = run(monitor, ("silent", 0.02), ("nominal", 2.0), ("silent", 0.02))
    assert modes == [LinkMode.HOLD, LinkMode.NOMINAL, LinkMode.HOLD]


def test_who_gives_up_waits_for_the_verifier() -> None:
    monitor = LinkMonitor(LinkLimits())
    monitor.give_up()
    assert monitor.mode is LinkMode.NOMINAL
    run(monitor, ("silent", 1.0))
    monitor.give_up()
    assert run(monitor, ("silent", 1.0), ("nominal", 2.0), ("silent", 1.0), start=200.0) == [
        LinkMode.HOLD, LinkMode.NOMINAL, LinkMode.DEGRADED,
    ]  # fmt: skip


@example([("silent", 0.0), ("nominal", 1.5), ("nominal", 2.0), ("silent", 1.0)], 2.0, 1.0)
@example([("silent", 0.0), ("silent", 5.0), ("nominal", 0.0), ("nominal", 1.0), ("silent", 1.0)], 2.0, 1.0)
@given(
    st.lists(st.tuples(st.sampled_from(STATES), st.floats(0.0, 5.0)), max_size=80),
    st.floats(0.0, 30.0),
    st.floats(0.0, 3.0),
)
def test_the_draft_model_never_decides_for_longer_than_it_may(
    looks: list[tuple[str, float]], degraded_s: float, recover_s: float
) -> None:
    """As far as anybody looked; a second of a nominal link gives back one. No verifier decides over a lost link."""
    monitor = LinkMonitor(LinkLimits(degraded_s=degraded_s, recover_s=recover_s))
    now = alone = nominal = 0.0
    for state, seconds in looks:
        before = monitor.mode
        now += seconds
        alone += seconds if before is LinkMode.DEGRADED else 0.0
        nominal += seconds if before is LinkMode.NOMINAL else 0.0
        mode = monitor.update(state, now)
        if mode is LinkMode.DEGRADED:
            assert alone <= degraded_s + nominal + 1e-6
        else:
            # What passed beyond the limit until somebody looked is not counted.
            alone = min(alone, degraded_s + nominal)
        if state in ("silent", "refused"):
            assert mode is not LinkMode.NOMINAL
        if before is not LinkMode.NOMINAL and mode is LinkMode.NOMINAL:
            assert state == "nominal"
        if before is LinkMode.HOLD:
            assert mode is not LinkMode.DEGRADED


class Verifier:
    """Answers `connect` after so many seconds, on a clock of its own."""

    def __init__(self, comes_at: float, error: Exception) -> None:
        self.now, self._comes_at, self._error = 0.0, comes_at, error

    def connect(self, limit_s: float, given_up: Callable[[], bool]) -> None:
        self.now += min(limit_s, max(self._comes_at - self.now, 0.0))
        if self.now < self._comes_at or isinstance(self._error, VerifierRefused):
            raise self._error

    def meet(self, limit_s: float, given_up: bool = False) -> list[str]:
        lines: list[str] = []
        meet(self.connect, limit_s, lambda: given_up, lines.append, lambda: self.now)
        return lines


def test_the_wait_for_a_verifier_is_logged_and_ends_when_it_comes() -> None:
    verifier = Verifier(12.0, VerifierLost("no verifier answers"))
    assert verifier.meet(60.0) == ["waiting for the verifier: no verifier answers"] * 2 and verifier.now == 12.0


def test_a_verifier_that_does_not_come_refuses_or_is_not_waited_for_ends_it() -> None:
    away = Verifier(math.inf, VerifierLost("no verifier answers"))
    with pytest.raises(VerifierLost, match="no verifier answers"):
        away.meet(17.0)
    assert away.now == 17.0
    with pytest.raises(VerifierRefused):
        Verifier(0.0, VerifierRefused("another tokenizer")).meet(60.0)
    left = Verifier(math.inf, VerifierLost("cancelled"))
    with pytest.raises(VerifierLost):
        left.meet(60.0, given_up=True)
    assert left.now <= 5.0
