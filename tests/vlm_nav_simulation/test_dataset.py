"""Training frames: reproducible, complete, and labelled as the frame shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculation.language.prompts import ActionKind, ActionSize, Blocked, NavigationAction
from vlm_nav_simulation.dataset import CELLS, MIN_COVERAGE, Sampler, cell_labels, sample_frames, side_by_side
from vlm_nav_simulation.ground_truth import Sighting, observe
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.world import World

TURN = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
RIGHT = NavigationAction(ActionKind.TURN_RIGHT, ActionSize.MEDIUM)


def test_equal_arguments_yield_equal_frames() -> None:
    one, other = (list(sample_frames(11, Difficulty.EASY, 6)) for _ in range(2))
    assert [frame.jpeg for frame in one] == [frame.jpeg for frame in other]
    assert [frame.questions for frame in one] == [frame.questions for frame in other]
    assert len({frame.jpeg for frame in one}) > 1


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
    classes = [list(CLASSES).index(item.object_class) for item in scene.objects]
    expected = np.full((CELLS, CELLS), -1)
    expected[0, :2], expected[1, 0] = classes[0], classes[2]
    assert np.array_equal(cells.object_class, expected)
    first = scene.objects[0]
    assert list(CLASSES)[cells.object_class[0, 0]] == first.object_class
    assert list(COLOURS)[cells.colour[0, 0]] == first.colour
    assert cells.distance[0, 0] == np.float32(sightings[0].distance)
    assert cells.object_class[7, 7] == cells.colour[7, 7] == -1
    assert np.isnan(cells.distance[7, 7])


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


def test_what_blocks_a_walk_is_listed() -> None:
    ahead = "Action: forward large"
    (frames,) = side_by_side([sample_frames(15, Difficulty.MIDDLE, 24, steered=True)], lambda asked: [ahead])
    done = [past for frame in frames for past in frame.questions[-1].done]
    assert any(isinstance(past, Blocked) for past in done)
