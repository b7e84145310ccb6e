"""Training frames: reproducible, complete, and labelled as the frame shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import cv2
import numpy as np
import pytest

from speculation.language.instructions import understand
from speculation.language.memory import GO2_CAMERA, SearchMemory
from speculation.language.prompts import ActionKind, ActionSize, Blocked, NavigationAction, Vocabulary
from vlm_nav_simulation.dataset import (
    CELLS,
    MIN_COVERAGE,
    RELATIONS,
    History,
    Query,
    Sampler,
    _in_view,
    _misled,
    _remembered,
    _way,
    cell_labels,
    encode_jpeg,
    free_ranges,
    made_up,
    random_pose,
    remember,
    sample_frames,
    side_by_side,
)
from vlm_nav_simulation.episode import MAX_BLOCKED
from vlm_nav_simulation.geometry import NOSE, Box, Obstacles, Pose
from vlm_nav_simulation.ground_truth import Sighting, bearing_and_distance, observe
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.oracle import SEARCH_TURN, Reason
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


def test_free_ranges_are_those_of_the_columns_that_show_a_thing() -> None:
    scene = make_scene(3, Difficulty.HARD)
    for item in scene.objects:
        away = 1.0 + item.radius + NOSE
        for yaw in np.linspace(-math.pi, math.pi, 12, endpoint=False):
            pose = Pose(item.x - away * math.cos(yaw), item.y - away * math.sin(yaw), float(yaw))
            free = free_ranges(scene.obstacles, pose)
            assert len(free) == CELLS and min(free) >= 0.0
            # straight ahead, between the columns in the middle, stands the object, or something that hides it
            assert max(free[3:5]) <= 1.3 and min(free[3:5]) <= 1.05
    boxes = Obstacles([Box("shelf", 2.0, 1.0, 0.1, 0.1, 1.0)], [])
    left = free_ranges(boxes, Pose(0.0, 0.0, 0.0))
    assert [math.isfinite(each) for each in left].index(True) < CELLS // 2, "columns run from left to right"
    assert not any(math.isfinite(each) for each in left[CELLS // 2 :])


def test_jpeg_keeps_red_red() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[..., 0] = 200
    back = cv2.imdecode(np.frombuffer(encode_jpeg(image), np.uint8), cv2.IMREAD_COLOR)
    assert back is not None
    assert abs(int(back[16, 16, 2]) - 200) < 8


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


def test_some_made_up_histories_turn_to_and_fro() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    searcher, rng = Searcher(scene), np.random.default_rng(1)
    histories = [made_up(scene, searcher, Pose(0.0, 0.0, 0.3), rng) for _ in range(200)]
    undone = 0
    for history in histories:
        if len(history.done) < 2:
            continue
        last, before = history.done[-1], history.done[-2]
        assert isinstance(last, NavigationAction) and isinstance(before, NavigationAction)
        if last.radians and last.radians == -before.radians:
            undone += 1
            assert math.isclose(history.views[-3].yaw, history.views[-1].yaw)
            assert math.isclose(history.views[-2].yaw, history.views[-1].yaw - last.radians)
    assert 10 < undone < 60


def test_a_made_up_way_leads_through_doorways() -> None:
    scene = make_scene(2, Difficulty.MIDDLE, layout=Layout.HALLWAY)
    (_, left, right), doors = scene.plan.areas, scene.plan.doorways
    history = History([Pose(left.x, left.y, 0.0), *_way(scene, Pose(left.x, left.y, 0.0), Pose(right.x, right.y, 0.0))])
    assert all(any(math.dist(view[:2], (door.x, door.y)) < 1e-9 for view in history.views) for door in doors)
    assert max(math.dist(a[:2], b[:2]) for a, b in pairwise(history.views)) < 1.2
    history.views.append(Pose(right.x, right.y, 0.0))
    lines = remember(scene, history, Query("red", "box"), np.random.default_rng(0)).lines()
    assert lines[1].count("m passed") == lines[1].count(" m"), lines


def test_what_geometry_shows_is_in_the_frame() -> None:
    agree = wrong = 0
    for seed in range(3):
        scene, rng = make_scene(seed, Difficulty.HARD), np.random.default_rng(seed)
        with World(scene) as world:
            for _ in range(10):
                world.set_pose(*random_pose(scene, rng))
                for sighting in observe(world):
                    same = [sighting.visible] == _in_view(scene, [world.pose], scene.objects[sighting.index])
                    agree, wrong = agree + same, wrong + (not same)
    assert agree > 15 * wrong


def test_a_memory_reads_what_the_robot_reads_from_the_same_words() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    item, pose = scene.objects[0], Pose(0.0, 0.0, 0.0)
    _, distance = bearing_and_distance(pose, item)
    for query in (Query(item.colour, item.object_class), Query("", item.object_class), Query(item.colour, "")):
        history = History([pose, pose], shown={pose: (0,)}, doors={pose: ()})
        notes = {remember(scene, history, query, np.random.default_rng(k)).last for k in range(40)}
        assert None in notes, "now and then an answer misses it"
        seen = [note for note in notes if note is not None]
        halves = [2 * math.dist(note, (GO2_CAMERA, 0.0)) for note in seen]
        assert max(abs(each - round(each)) for each in halves) < 1e-6, "answers count half metres"
        assert abs(float(np.median(halves)) / 2 - distance) < 0.8


def test_an_object_elsewhere_is_not_what_the_memory_has() -> None:
    scene = make_scene(3, Difficulty.MIDDLE)
    item, memory = scene.objects[0], SearchMemory()
    memory.look(item.x, item.y, 0.0)
    memory.found(0.0, 0.5)
    assert _remembered(scene, memory, (0,)) == 0
    memory.found(0.0, 3.0)
    assert _remembered(scene, memory, (0,)) is None
    behind = Pose(item.x, item.y, math.pi)
    decision = _misled(behind, memory)
    assert decision is not None and decision.reason is Reason.RETURN and abs(decision.action.radians) > 0.7
    assert _misled(Pose(item.x, item.y, 0.0), memory) is None


def test_a_walk_that_is_blocked_too_often_ends_as_an_episode_does() -> None:
    ahead = "Action: forward large"
    (frames,) = side_by_side([sample_frames(15, Difficulty.MIDDLE, 40, steered=True)], lambda asked: [ahead])
    ends = [frame.questions[-1].done[-MAX_BLOCKED:] for frame in frames]
    assert not any(len(done) == MAX_BLOCKED and all(isinstance(past, Blocked) for past in done) for done in ends)


def test_a_memory_holds_doorways_and_where_the_object_was() -> None:
    scene = make_scene(3, Difficulty.MIDDLE, layout=Layout.TWO_ROOMS)
    item, seen_from = scene.objects[scene.target_index], None
    for x, y in np.random.default_rng(1).uniform(-4, 4, (4000, 2)):
        pose = Pose(float(x), float(y), math.atan2(item.y - y, item.x - x))
        near = abs(math.dist((x, y), (item.x, item.y)) - 1.2) < 0.3 and scene.area_at(x, y).holds(item.x, item.y)
        near = near and scene.area_at(x, y).holds(x, y)
        if near and scene.obstacles.footprint_clearance(pose) > 0:
            seen_from = pose
            break
    assert seen_from is not None
    away = Pose(seen_from.x, seen_from.y, seen_from.yaw + math.pi)
    history = History([seen_from, away], [])
    texts = {remember(scene, history, Query(item.colour, item.object_class), np.random.default_rng(k)).lines()[-1]
             for k in range(20)}  # fmt: skip
    assert any(text.startswith("Last seen: behind") for text in texts)


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
