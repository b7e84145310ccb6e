"""Capacity is the largest fleet that keeps its promise; figures count what they name."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import ANY

from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_nav_evaluation.fleet.figures import Window, capacity, run
from vlm_nav_evaluation.fleet.systems import Setting
from vlm_nav_evaluation.fleet.wisp import CLASSES, systems, times_of
from vlm_nav_evaluation.fleet.workload import Workload


@settings(max_examples=50)
@given(st.integers(0, 130), st.integers(1, 120), st.integers(1, 200))
def test_capacity_is_what_asking_every_number_finds(knee: int, most: int, guess: int) -> None:
    asked = []

    def violations(robots: int) -> float:
        asked.append(robots)
        return 0.0 if robots <= knee else 0.02 * (robots - knee)

    exact = max((n for n in range(1, most + 1) if violations(n) <= 0.05), default=0)
    asked.clear()
    assert capacity(violations, 0.05, most, guess) == exact
    assert len(asked) == len(set(asked)) <= 20
    rough = capacity(violations, 0.05, most, guess, near=0.2)
    assert rough <= exact <= max(rough + 1, 1.2 * rough + 1)


def test_more_robots_are_slower_and_late_in_the_end() -> None:
    workload = Workload(prompt=(32, 64), answer=(16, 32))
    setting = Setting(systems()["central"], times_of("main text"), workload, CLASSES[-1:])
    few, many = (run(setting, robots, 0, Window(2.0, 5.0)) for robots in (4, 150))
    assert few.violations == 0.0 < 0.3 < many.violations == many.by_class["interactive"]
    assert few.tokens_per_pass == 1.0
    assert many.goodput > few.goodput > 4 * 8.0
    assert few.requests >= 4 and few.rows <= 4.0
    known = run(setting, 150, 0, Window(2.0, 5.0), enough=0.05)
    assert 0.05 < known.violations <= many.violations and known.requests == many.requests
    assert run(setting, 4, 0, Window(2.0, 5.0), enough=0.05) == replace(few, deciding_us=ANY)
