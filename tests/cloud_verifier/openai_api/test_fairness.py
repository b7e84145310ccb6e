"""Requests of class batch beside robots, on virtual time: no robot is later than its class allows."""

from __future__ import annotations

import pytest

from speculation.service_classes import BATCH, INTERACTIVE
from vlm_nav_evaluation.fleet.figures import Window, run
from vlm_nav_evaluation.fleet.systems import Setting
from vlm_nav_evaluation.fleet.wisp import QUICK, systems, times_of

ROBOTS, REQUESTS = 8, 4
"""Sessions of the default `--api-sessions`, which ask again as soon as they are answered."""


@pytest.mark.parametrize("system", ["central", "wisp", "full_budget"])
def test_robots_keep_their_class(system: str) -> None:
    classes = (INTERACTIVE.name,) * ROBOTS + (BATCH.name,) * REQUESTS
    setting = Setting(systems()[system], times_of("appendix C"), QUICK, classes)
    figures = run(setting, len(classes), 1, Window(4.0, 10.0))
    assert figures.by_class[INTERACTIVE.name] == 0.0 and figures.requests > len(classes)
    assert figures.by_class.get(BATCH.name, 0.0) == 0.0, "they are answered, too"
