"""Queries: worded as the robot asks, and right for what they name."""

from __future__ import annotations

from speculation.language.instructions import understand
from speculation.language.prompts import Vocabulary
from vlm_nav_simulation.dataset import sample_frames
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.queries import RELATIONS, Query
from vlm_nav_simulation.scene import Difficulty, make_scene


def test_a_query_is_worded_as_the_robot_asks_for_it() -> None:
    words = Vocabulary(tuple(COLOURS), tuple(CLASSES), form=2)
    for colour in ("", *COLOURS):
        for object_class in ("", *CLASSES):
            if colour or object_class:
                text = Query(colour, object_class).text
                assert understand(text, words).instruction == text


def test_a_query_by_place_has_one_right_object_in_view() -> None:
    found = set[str]()
    for seed in range(40, 46):
        scene = make_scene(seed, Difficulty.HARD)
        for frame in sample_frames(seed, Difficulty.HARD, 4):
            for question in frame.questions:
                relation = question.query.relation
                if relation is None:
                    continue
                found.add(relation.word)
                assert question.object_index is not None and question.query.text.startswith("find the ")
                one = frame.sightings[question.object_index]
                assert one.visible and one.object_class == question.query.object_class
                others = [s for s in frame.sightings if s.visible and s.object_class == relation.object_class
                          and relation.colour in ("", s.colour) and s.index != one.index]  # fmt: skip
                alike = [s for s in frame.sightings if s.visible and s.object_class == one.object_class]
                holds = RELATIONS[relation.word]
                right = {
                    s.index for s in alike for other in others if s.index != other.index and holds(scene, s, other)
                }
                assert right == {one.index}
    assert {"left of", "right of"} <= found
