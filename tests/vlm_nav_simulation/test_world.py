"""Frames and ground truth: reproducible, and of one another."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from vlm_nav_simulation.camera import CameraKind
from vlm_nav_simulation.ground_truth import MIN_PIXELS, Side, observe
from vlm_nav_simulation.scene import Difficulty, Scene, make_scene
from vlm_nav_simulation.world import World


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene(7, Difficulty.MIDDLE)


def test_frames_are_reproducible_and_change_with_the_pose(scene: Scene) -> None:
    with World(scene) as one, World(scene) as other:
        assert one.render().shape == (224, 224, 3)
        assert np.array_equal(one.render(), other.render())
        other.set_pose(scene.start.x, scene.start.y, scene.start.yaw + 0.5)
        assert not np.array_equal(one.render(), other.render())
        other.set_pose(*scene.start)
        assert np.array_equal(one.render(), other.render())


def test_a_sighting_describes_its_pixels(scene: Scene) -> None:
    goal = scene.objects[scene.target_index]
    with World(scene) as world:
        facing = math.atan2(goal.y - scene.start.y, goal.x - scene.start.x)
        world.set_pose(scene.start.x, scene.start.y, facing + 0.2)
        labels = world.segmentation()
        sighting = observe(world, labels)[scene.target_index]
        rows, columns = np.nonzero(labels == scene.target_index)
    assert sighting.visible
    assert sighting.pixels == len(rows) >= MIN_PIXELS
    # the target is to the right of the axis; pixels run right, bearings run left
    column = 112 - 112 * math.tan(sighting.bearing)
    assert sighting.bearing < 0
    assert columns.min() <= column <= columns.max() + 1
    assert sighting.side in (Side.SLIGHTLY_RIGHT, Side.RIGHT)


@pytest.mark.parametrize(("kind", "count"), [(CameraKind.GL, 200), (CameraKind.RAY, 20)])
def test_a_robot_that_another_thread_moves_is_seen_whole_in_one_place(
    scene: Scene, kind: CameraKind, count: int
) -> None:
    start, ended = scene.start, threading.Event()
    places = [(start.x, start.y, start.yaw), (start.x, start.y, start.yaw + 0.5)]
    with World(scene, 56, camera=kind) as world:
        frames = []
        for place in places:
            world.set_pose(*place)
            frames.append(world.render())

        def walk() -> None:
            while not ended.is_set():
                for place in places:
                    world.set_pose(*place)

        thread = threading.Thread(target=walk)
        thread.start()
        try:
            seen = [world.render() for _ in range(count)]
        finally:
            ended.set()
            thread.join()
    assert all(any(np.array_equal(each, frame) for frame in frames) for each in seen)


@pytest.mark.parametrize("kind", CameraKind)
def test_a_view_from_outside_leaves_the_frames_as_they_are(scene: Scene, kind: CameraKind) -> None:
    with World(scene, 56, camera=kind) as world:
        frame = world.render()
        view = world.render_top(160, 120)
        assert view.shape == (120, 160, 3) and view.std() > 5
        assert np.array_equal(world.render(), frame)


@pytest.mark.parametrize("size", [0, 27, 961])
def test_frame_sizes_are_bounded(scene: Scene, size: int) -> None:
    with pytest.raises(ValueError, match=f"frame size {size}"):
        World(scene, size)


def test_another_thread_gets_a_sentence(scene: Scene) -> None:
    caught: list[Exception] = []
    with World(scene) as world:

        def draw() -> None:
            try:
                world.render()
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
    assert "thread" in str(caught[0])
