"""Queries: worded as the robot asks."""

from __future__ import annotations

from speculation.language.instructions import understand
from speculation.language.prompts import Vocabulary
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.queries import Query


def test_a_query_is_worded_as_the_robot_asks_for_it() -> None:
    words = Vocabulary(tuple(COLOURS), tuple(CLASSES), form=2)
    for colour in ("", *COLOURS):
        for object_class in ("", *CLASSES):
            if colour or object_class:
                text = Query(colour, object_class).text
                assert understand(text, words).instruction == text
