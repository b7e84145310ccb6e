"""What forwards and exits take: medians of what was timed, with both heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adapters_training.exit_choice.timing import Clock, PassTimes, time_forward
from speculation.exits import ExitHeads, Head
from speculation.vlm.load import load_vlm


def test_leads_and_costs_are_medians() -> None:
    layers = np.array([[1.0], [2.0], [3.0]]) * np.ones((3, 4))
    times = PassTimes(Clock.WALL, layers, np.full(3, 2.0), {Head.FULL: {2: np.array([1.0, 3.0, 9.0])}})
    assert [times.lead_s(layer) for layer in range(4)] == [8.0, 6.0, 4.0, 2.0]
    assert times.cost_s(Head.FULL, 2) == 3.0


def test_forwards_are_timed_with_both_heads_and_change_nothing(tiny_target: Path) -> None:
    vlm = load_vlm(tiny_target)
    heads = ExitHeads(vlm, [0, 2], rank=4)
    heads.set_short_list([1, 2, 3])
    times = time_forward(vlm, heads, drafted=2, context=8, repeats=4)
    assert times.layers.shape == (4, 4) and times.head.shape == (4,) and (times.layers > 0).all()
    assert {head: sorted(each) for head, each in times.exits.items()} == {Head.FULL: [0, 2], Head.SHORT: [0, 2]}
    assert time_forward(vlm, None, drafted=0, context=0, repeats=1).exits == {}
