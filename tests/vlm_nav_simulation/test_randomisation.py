"""Randomised frames: off by default, seeded, within limits, and still labelled as the frame shows."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_nav_simulation.dataset import sample_frames
from vlm_nav_simulation.mujoco_scene import PLAIN
from vlm_nav_simulation.queries import Query
from vlm_nav_simulation.randomisation import JPEG_QUALITY, TRAINING, Randomisation
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.world import World


def test_off_changes_nothing() -> None:
    plain = list(sample_frames(21, Difficulty.EASY, 4))
    off = list(sample_frames(21, Difficulty.EASY, 4, randomisation=Randomisation()))
    assert [frame.jpeg for frame in plain] == [frame.jpeg for frame in off]
    assert Randomisation().look(np.random.default_rng(0)) == PLAIN
    scene, image = make_scene(21, Difficulty.EASY), np.full((4, 4, 3), 99, np.uint8)
    assert Randomisation().rescale(scene, np.random.default_rng(0)) is scene
    assert Randomisation().sense(image, np.random.default_rng(0)) is image


def test_equal_seeds_stray_equally_and_differ_from_plain_frames() -> None:
    one, other = (list(sample_frames(22, Difficulty.EASY, 5, randomisation=TRAINING)) for _ in range(2))
    plain = list(sample_frames(22, Difficulty.EASY, 5))
    assert [frame.jpeg for frame in one] == [frame.jpeg for frame in other]
    assert not {frame.jpeg for frame in one} & {frame.jpeg for frame in plain}
    items = make_scene(22, Difficulty.EASY).objects
    assert [q.query for q in one[0].questions[: len(items)]] == [Query(*vars(item.target).values()) for item in items]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_draws_stay_within_what_was_asked_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    look = TRAINING.look(rng)
    assert abs(look.light - 1) <= TRAINING.light
    assert abs(look.tilt) <= np.radians(TRAINING.pitch)
    assert abs(look.lift) <= TRAINING.height
    assert abs(look.widening) <= TRAINING.view
    assert JPEG_QUALITY - TRAINING.jpeg <= TRAINING.quality(rng) <= JPEG_QUALITY
    grey = np.full((32, 32, 3), 100, np.uint8)
    mean = TRAINING.sense(grey, rng).mean(axis=(0, 1))
    gain = 2**TRAINING.exposure * (1 + TRAINING.balance)
    assert np.all((mean > 100 / gain - 2) & (mean < 100 * gain + 2))


def test_rescaled_objects_stay_where_they_are_and_a_start_stays_free() -> None:
    for seed in range(8):
        scene = make_scene(seed, Difficulty.HARD)
        changed = TRAINING.rescale(scene, np.random.default_rng(seed))
        for before, after in zip(scene.objects, changed.objects, strict=True):
            assert (before.x, before.y, before.target) == (after.x, after.y, after.target)
            assert abs(after.scale / before.scale - 1) <= TRAINING.scale
        assert changed.obstacles.footprint_clearance(changed.start) > 0
        assert changed.start == scene.start


def test_a_lower_and_tilted_camera_sees_it() -> None:
    scene = make_scene(23, Difficulty.EASY)
    with World(scene) as plain, World(scene, look=TRAINING.look(np.random.default_rng(5))) as other:
        assert plain.camera_pose[0][2] != other.camera_pose[0][2]
        assert not np.allclose(plain.camera_pose[1], other.camera_pose[1])
        assert not np.array_equal(plain.render(), other.render())
        # tilt turns about the camera's right axis alone: that axis stays level
        assert other.camera_pose[1][2, 0] == pytest.approx(0.0, abs=1e-9)


def test_labels_belong_to_the_randomised_picture() -> None:
    for frame in sample_frames(24, Difficulty.EASY, 6, randomisation=TRAINING):
        image = cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        assert image.shape == (224, 224, 3)
        for sighting in frame.sightings:
            assert (sighting.box is None) == (sighting.pixels == 0)


@pytest.mark.parametrize(("name", "value"), [("scale", 0.5), ("light", -0.1), ("jpeg", 90)])
def test_limits_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"randomisation {name} {value} is outside 0.."):
        Randomisation(**{name: value})  # type: ignore[arg-type]
