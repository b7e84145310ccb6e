"""Training frames: reproducible, complete, and labelled as the frame shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import cv2
import numpy as np
import pytest

from speculation.language.instructions import understand
from speculation.language.memory import SearchMemory
from speculation.language.prompts import ActionKind, ActionSize, Blocked, NavigationAction, Vocabulary
from vlm_nav_simulation.dataset import CELLS, MIN_COVERAGE, Sampler, cell_labels, sample_frames, side_by_side
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Sighting, observe
from vlm_nav_simulation.histories import (
    History,
    made_up,
    random_pose,
    remember,
    remembered_object,
    turn_to_remembered,
    way_between,
)
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.oracle import SEARCH_TURN, Reason
from vlm_nav_simulation.queries import RELATIONS, Query
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.searching import Searcher
from vlm_nav_simulation.world import World

TURN = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
RIGHT = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.MEDIUM)


def test_equal_arguments_yield_equal_frames() -> None:
    one, other = (list(sample_frames(11, Difficulty.EASY, 6)) for _ in range(2))
    assert [frame.jpeg for frame in one] == [frame.jpeg for frame in other]
    assert [frame.questions for frame in one] == [frame.questions for frame in other]
    assert len({frame.jpeg for frame in one}) > 1


def test_every_object_and_two_absent_pairs_are_asked_for() -> None:
    scene = make_scene(12, Difficulty.MIDDLE)
    items = [Query(item.colour, item.object_class) for item in scene.objects]
    for frame in sample_frames(12, Difficulty.MIDDLE, 8):
        count = len(items)
        assert [q.query for q in frame.questions[:count]] == items
        assert [q.object_index for q in frame.questions[:count]] == list(range(count))
        absent = frame.questions[count : count + 2]
        assert all(q.object_index is None and not q.query.objects(scene) for q in absent)
        assert all(q.decision.reason in (Reason.SEARCH, Reason.EXPLORE, Reason.NOT_HERE) for q in absent)
        alike = absent[0].query
        assert any(alike.colour == w.colour or alike.object_class == w.object_class for w in items)
        several = frame.questions[count + 2 : count + 4]
        assert [bool(q.query.colour) + bool(q.query.object_class) for q in several] == [1, 1], "a class, a colour"
        assert all(q.memory[0].startswith("Seen: here ") for q in frame.questions)
        image = cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        assert image.shape == (224, 224, 3)


def test_cells_hold_the_object_that_covers_most_of_them() -> None:
    scene = make_scene(13, Difficulty.HARD)
    with World(scene) as world:
        labels = np.full((224, 224), -1, np.int32)
        sightings: list[Sighting] = observe(world, labels)
        labels[:28, :28] = 0
        labels[:28, 28:56] = np.where(np.arange(28) < 12, 1, 0)
        labels[28:33, :8] = 2  # 40 of 784 pixels: just enough
        labels[28:33, 28:35] = 2  # 35: not enough
        cells = cell_labels(labels, sightings)
    assert MIN_COVERAGE * 784 < 40
    expected = np.full((CELLS, CELLS), -1)
    expected[0, :2], expected[1, 0] = 0, 2
    assert np.array_equal(cells.object_index, expected)
    first = scene.objects[0]
    assert list(CLASSES)[cells.object_class[0, 0]] == first.object_class
    assert list(COLOURS)[cells.colour[0, 0]] == first.colour
    assert cells.distance[0, 0] == np.float32(sightings[0].distance)
    assert cells.object_class[7, 7] == cells.colour[7, 7] == -1
    assert np.isnan(cells.distance[7, 7])


def test_a_query_names_what_is_right() -> None:
    scene = make_scene(12, Difficulty.HARD)
    item = scene.objects[0]
    assert Query(item.colour, item.object_class).text == f"find the {item.colour} {item.object_class}"
    assert Query(item.colour, item.object_class).objects(scene) == (0,)
    assert Query("", "ball").text == "find a ball" and Query("red", "").text == "find something red"
    assert Query("", item.object_class).objects(scene) == tuple(
        other.index for other in scene.objects if other.object_class == item.object_class
    )


def test_a_query_is_worded_as_the_robot_asks_for_it() -> None:
    words = Vocabulary(tuple(COLOURS), tuple(CLASSES), form=2)
    for colour in ("", *COLOURS):
        for object_class in ("", *CLASSES):
            if colour or object_class:
                text = Query(colour, object_class).text
                assert understand(text, words).instruction == text


def test_a_policy_walks_and_the_teacher_corrects_it() -> None:
    prompts: list[str] = []

    def always_right(questions: Sequence[tuple[str, bytes]]) -> list[str]:
        prompts.extend(prompt for prompt, _ in questions)
        return [f"The red ball is on the left, about 1 m away.\nAction: {RIGHT.text}"] * len(questions)

    (frames,) = side_by_side([sample_frames(14, Difficulty.MIDDLE, 8, steered=True)], always_right)
    assert prompts == [frame.prompt for frame in frames]
    assert [frame.questions[-1].done for frame in frames[:4]] == [(RIGHT,) * turns for turns in range(4)]
    assert prompts[3].splitlines()[1] == f"Done: {RIGHT.text} x3"
    query = frames[0].questions[-1].query
    noted = (query.colour or "red", query.object_class or "ball") == ("red", "ball")
    assert any("Last seen" in prompt for prompt in prompts[:8]) == noted, "its memory holds what its answers name"


def test_scenes_side_by_side_are_those_of_scenes_alone() -> None:
    def steer(questions: Sequence[tuple[str, bytes]]) -> list[str]:
        return [f"Action: {(RIGHT if len(prompt) % 3 else TURN).text}" for prompt, _ in questions]

    def scene(seed: int, frames: int) -> Sampler:
        return sample_frames(seed, Difficulty.EASY, frames, steered=True)

    lengths = {14: 3, 15: 6, 16: 4}
    together = side_by_side([scene(*each) for each in lengths.items()], steer)
    assert [len(frames) for frames in together] == list(lengths.values())
    for seed, frames in zip(lengths, together, strict=True):
        (alone,) = side_by_side([scene(seed, lengths[seed])], steer)
        assert [frame.jpeg for frame in alone] == [frame.jpeg for frame in frames]
        assert [frame.prompt for frame in alone] == [frame.prompt for frame in frames]


def test_a_policy_that_gives_no_answer_is_named() -> None:
    frames = sample_frames(14, Difficulty.EASY, 3, steered=True)
    next(frames)
    with pytest.raises(ValueError, match="a policy walks here: send its answer to each frame"):
        next(frames)


def test_a_policy_that_turns_to_and_fro_is_shown_the_way_on() -> None:
    left = NavigationAction(ActionKind.TURN_LEFT, ActionSize.MEDIUM)

    def dither(questions: Sequence[tuple[str, bytes]]) -> list[str]:
        last = [prompt.splitlines()[1] if "Done" in prompt else "" for prompt, _ in questions]
        return [f"Action: {(left if done.endswith(RIGHT.text) else RIGHT).text}" for done in last]

    (frames,) = side_by_side([sample_frames(15, Difficulty.MIDDLE, 20, steered=True)], dither)
    walks = [frame.questions[-1].done for frame in frames]
    assert walks[2] == (RIGHT, left), "twice it may"
    assert all(done[k : k + 3] not in ((RIGHT, left, RIGHT), (left, RIGHT, left)) for done in walks for k in range(20))


def test_what_blocks_a_walk_is_listed() -> None:
    ahead = "Action: forward large"
    (frames,) = side_by_side([sample_frames(15, Difficulty.MIDDLE, 24, steered=True)], lambda asked: [ahead])
    done = [past for frame in frames for past in frame.questions[-1].done]
    assert any(isinstance(past, Blocked) for past in done)


def test_a_made_up_history_ends_at_the_frame_and_holds_together() -> None:
    scene = make_scene(3, Difficulty.MIDDLE, layout=Layout.TWO_ROOMS)
    searcher, rng = Searcher(scene), np.random.default_rng(0)
    lengths = set()
    for _ in range(200):
        pose = random_pose(scene, rng)
        history = made_up(scene, searcher, pose, rng)
        assert history.views[-1] == pose
        lengths.add(len(history.views))
        steps = zip(history.views[-2::-1], reversed(history.done), reversed(history.views), strict=False)
        for view, past, after in steps:
            if past.text == "forward large":
                break
            assert past.text.startswith(("turn", "forward"))
            turned = math.radians(45.0) if past == SEARCH_TURN else None
            assert turned is None or abs((after.yaw - view.yaw - turned + math.pi) % math.tau - math.pi) < 1e-9
    assert min(lengths) == 1 and max(lengths) > 8


def test_a_made_up_way_leads_through_doorways() -> None:
    scene = make_scene(2, Difficulty.MIDDLE, layout=Layout.HALLWAY)
    (_, left, right), doors = scene.plan.areas, scene.plan.doorways
    history = History(
        [Pose(left.x, left.y, 0.0), *way_between(scene, Pose(left.x, left.y, 0.0), Pose(right.x, right.y, 0.0))]
    )
    assert all(any(math.dist(view[:2], (door.x, door.y)) < 1e-9 for view in history.views) for door in doors)
    assert max(math.dist(a[:2], b[:2]) for a, b in pairwise(history.views)) < 1.2
    history.views.append(Pose(right.x, right.y, 0.0))
    lines = remember(scene, history, Query("red", "box"), np.random.default_rng(0)).lines()
    assert lines[1].count("m passed") == lines[1].count(" m"), lines


def test_an_object_elsewhere_is_not_what_the_memory_has() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    item, memory = scene.objects[0], SearchMemory()
    memory.look(item.x, item.y, 0.0)
    memory.found(0.0, 0.5)
    assert remembered_object(scene, memory, (0,)) == 0
    memory.found(0.0, 3.0)
    assert remembered_object(scene, memory, (0,)) is None
    behind = Pose(item.x, item.y, math.pi)
    decision = turn_to_remembered(behind, memory)
    assert decision is not None and decision.reason is Reason.RETURN and abs(decision.action.radians) > 0.7
    assert turn_to_remembered(Pose(item.x, item.y, 0.0), memory) is None


def test_a_query_by_place_has_one_right_object_in_view() -> None:
    found = set[str]()
    for seed in range(40, 52):
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
