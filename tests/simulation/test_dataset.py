"""Training frames: reproducible, complete, and labelled as the frame shows."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from simulation.dataset import CELLS, MIN_COVERAGE, cell_labels, encode_jpeg, sample_frames
from simulation.ground_truth import Sighting, observe
from simulation.objects import CLASSES, COLOURS
from simulation.oracle import Oracle, Reason
from simulation.scene import Difficulty, make_scene
from simulation.world import World
from speculation.prompts import ActionKind, ActionSize, NavigationAction, Target

RIGHT = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.MEDIUM)


def test_equal_arguments_yield_equal_frames() -> None:
    one, other = (list(sample_frames(11, Difficulty.EASY, 6)) for _ in range(2))
    assert [frame.jpeg for frame in one] == [frame.jpeg for frame in other]
    assert [frame.questions for frame in one] == [frame.questions for frame in other]
    assert len({frame.jpeg for frame in one}) > 1


def test_every_object_and_two_absent_pairs_are_asked_for() -> None:
    scene = make_scene(12, Difficulty.MIDDLE)
    for frame in sample_frames(12, Difficulty.MIDDLE, 8):
        present = [q.target for q in frame.questions if q.object_index is not None]
        absent = [q for q in frame.questions if q.object_index is None]
        assert present == [item.target for item in scene.objects]
        assert len({q.target for q in absent} - set(present)) == 2
        assert all(q.decision.reason in (Reason.SEARCH, Reason.EXPLORE) for q in absent)
        alike = absent[0].target
        assert any(alike.colour == t.colour or alike.object_class == t.object_class for t in present)
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


def test_jpeg_keeps_red_red() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[..., 0] = 200
    back = cv2.imdecode(np.frombuffer(encode_jpeg(image), np.uint8), cv2.IMREAD_COLOR)
    assert back is not None
    assert abs(int(back[16, 16, 2]) - 200) < 8


def test_a_policy_walks_and_the_oracle_corrects_it() -> None:
    asked: list[int] = []

    def always_right(jpeg: bytes, target: Target, done: Sequence[NavigationAction]) -> NavigationAction:
        asked.append(len(done))
        return RIGHT

    frames = list(sample_frames(14, Difficulty.MIDDLE, 8, steer=always_right))
    assert asked[:6] == list(range(6)), "it is told what it did"
    walked = [q.done for frame in frames for q in frame.questions if q.done and set(q.done) == {RIGHT}]
    assert max(map(len, walked)) >= 5
    oracle = Oracle(make_scene(14, Difficulty.MIDDLE))
    for frame in frames:
        for question in frame.questions:
            again = oracle.decide(frame.pose, question.object_index, frame.sightings, question.done)
            assert again == question.decision
