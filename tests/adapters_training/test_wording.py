"""Answers are worded so that a greedy model can choose between reasons."""

from __future__ import annotations

import random
from itertools import combinations

import msgspec
import numpy as np
import pytest

from adapters_training import wording
from tests.adapters_training.frames import make_frame
from vlm_nav_simulation.oracle import Reason

IN_VIEW = ({Reason.REACHED}, {Reason.CENTRE, "turn"}, {"forward"}, {Reason.DETOUR})
OUT_OF_VIEW = ({Reason.SEARCH}, {Reason.EXPLORE}, {Reason.DOOR}, {Reason.RETURN}, {Reason.NOT_HERE})


@pytest.mark.parametrize("reasons", [IN_VIEW, OUT_OF_VIEW])
def test_reasons_behind_one_sight_begin_with_different_words(reasons: tuple[set[str], ...]) -> None:
    for variant in range(3):
        begins = [{wording._WHY[reason][variant].split()[0] for reason in alike} for alike in reasons]
        for one, other in combinations(begins, 2):
            assert not one & other, (variant, one, other)


def test_a_reason_is_worded_by_what_was_asked_for() -> None:
    frame = make_frame(np.random.default_rng(0))
    for task in frame.tasks:
        for query in ("", "find a ball", "find something red"):
            asked = msgspec.structs.replace(task, query=query)
            ends = {wording.reasoning(frame, asked, random.Random(seed)).split(". ")[-1] for seed in range(20)}
            assert len(ends) == 1
