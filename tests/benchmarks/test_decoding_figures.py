from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exactness import first_flip
from evaluation.experiment.questions import questions
from evaluation.tables import table
from speculation.prompts import ResponseOrder


def test_a_flip_is_the_first_difference_with_the_targets_margin() -> None:
    rows = [np.array([3.0, 1.0, 0.0]), np.array([0.0, 2.0, 1.75])]
    assert first_flip(0, "sd", [0, 1], rows, [0, 1]) is None
    flip = first_flip(4, "sd", [0, 1], rows, [0, 2])
    assert flip is not None and (flip.frame, flip.position, flip.margin) == (4, 1, 0.25)
    short = first_flip(0, "sd", [0, 1], rows, [0])
    assert short is not None and (short.position, short.margin) == (1, float("inf"))


def test_questions_are_the_same_for_the_same_seed() -> None:
    first, again, other = questions("random", 3), questions("random", 3), questions("random", 3, seed=1)
    assert first == again and first != other and len(first) == 3
    assert all(question.jpeg.startswith(b"\xff\xd8") for question in first)
    with pytest.raises(ValueError, match="choose simulation, random"):
        questions("camera", 1)


def test_questions_of_rooms_tell_the_walk_so_far() -> None:
    asked = questions("simulation", 12, order=ResponseOrder.ACTION_FIRST)
    prompts = [question.prompt.splitlines() for question in asked]
    assert len(prompts) == 12 and all(lines[-1] == "Action first" for lines in prompts)
    walks = {lines[0] for lines in prompts}
    assert len(walks) >= 2 and all(told.startswith("find the ") for told in walks)
    assert len(prompts[0]) == 2 and prompts[1][1].startswith("Done: ")


def test_the_table_is_aligned() -> None:
    assert table(("mode", "ms"), [("a", "1"), ("long", "1000")]) == "mode    ms\na        1\nlong  1000"
