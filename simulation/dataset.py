"""Labelled frames for training: images, what they show, and what the oracle would do for every target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from simulation.camera import Image, Labels
from simulation.episode import execute
from simulation.geometry import Pose, wrap
from simulation.ground_truth import Sighting, observe
from simulation.layouts import Layout
from simulation.objects import CLASSES, COLOURS
from simulation.oracle import CIRCLE, SEARCH_TURN, Decision, Oracle
from simulation.randomisation import JPEG_QUALITY, Randomisation
from simulation.scene import Difficulty, Scene, make_scene
from simulation.stage import PLAIN
from simulation.world import World
from speculation.prompts import ACTIONS, STOP, ActionKind, NavigationAction, Target

CELLS = 8
"""Token cells along a side: a 224-pixel frame in cells of 28 pixels, one image token each."""
MIN_COVERAGE = 0.05
ROLLOUT_SHARE = 0.6
_PERTURBED = 0.5
_ASTRAY = 0.2
_MAX_ROLLOUT = 14
_CLEARANCE = 0.1
"""Free space around a random pose's footprint, metres."""

Steer = Callable[[bytes, Target, Sequence[NavigationAction]], NavigationAction | None]
"""JPEG frame, target and actions so far in, a policy's action out; None where it gives none."""

_FORWARDS = tuple(action for action in ACTIONS if action.kind is ActionKind.FORWARD)
_TURNS = tuple(action for action in ACTIONS if action.radians)


@dataclass(frozen=True)
class CellLabels:
    """Labels of the token cells of a frame, each [8, 8]."""

    object_index: npt.NDArray[np.int8]
    """Index of the object covering most of the cell, -1 where none covers 5 %."""
    object_class: npt.NDArray[np.int8]
    """Position in CLASSES, or -1."""
    colour: npt.NDArray[np.int8]
    """Position in COLOURS, or -1."""
    distance: npt.NDArray[np.float32]
    """Metres, or NaN."""


@dataclass(frozen=True)
class Question:
    """An instruction about a frame, and the oracle's answer."""

    target: Target
    object_index: int | None
    """The object that the target is; None: not in the scene."""
    decision: Decision
    done: tuple[NavigationAction, ...] = ()
    """Actions before it: the walk so far, or a made-up history."""


@dataclass(frozen=True)
class LabelledFrame:
    """A frame with its labels."""

    seed: int
    difficulty: Difficulty
    pose: Pose
    jpeg: bytes
    """Of quality 90 unless randomised."""
    sightings: tuple[Sighting, ...]
    cells: CellLabels
    questions: tuple[Question, ...]
    """About every object of the scene and two absent pairs."""


def encode_jpeg(image: Image, quality: int = JPEG_QUALITY) -> bytes:
    """Return the JPEG bytes of an RGB image [H, W, 3]."""
    done, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"cannot encode an image of shape {image.shape} and type {image.dtype} as JPEG")
    return bytes(data)


def cell_labels(labels: Labels, sightings: list[Sighting]) -> CellLabels:
    """Return the labels of the 8 x 8 token cells of a segmentation [H, W] whose sides are multiples of 8."""
    rows, columns = labels.shape[0] // CELLS, labels.shape[1] // CELLS
    cells = labels.reshape(CELLS, rows, CELLS, columns).transpose(0, 2, 1, 3).reshape(CELLS * CELLS, -1)
    counts = np.stack([(cells == sighting.index).sum(axis=1) for sighting in sightings], axis=1)
    best = counts.argmax(axis=1)
    best = np.where(counts.max(axis=1) >= MIN_COVERAGE * cells.shape[1], best, -1).reshape(CELLS, CELLS)
    # the extra last entry is what index -1 reads
    classes = np.array([*(list(CLASSES).index(s.object_class) for s in sightings), -1])
    colours = np.array([*(list(COLOURS).index(s.colour) for s in sightings), -1])
    distances = np.array([*(s.distance for s in sightings), math.nan])
    return CellLabels(
        best.astype(np.int8),
        classes[best].astype(np.int8),
        colours[best].astype(np.int8),
        distances[best].astype(np.float32),
    )


def sample_frames(
    seed: int,
    difficulty: Difficulty,
    frames: int = 25,
    randomisation: Randomisation | None = None,
    layout: Layout = Layout.ROOM,
    steer: Steer | None = None,
) -> Iterator[LabelledFrame]:
    """Yield `frames` labelled frames of one scene; equal arguments yield equal frames.

    About 60 % lie on walks to random targets, half of them knocked off course; the rest are free poses anywhere, most
    of which look towards some object. The oracle walks, and errs now and then; with `steer` that policy walks, all the
    time, and the oracle labels what would have been right (DAgger, Ross, Gordon, Bagnell, arXiv 1011.0686).
    Runs in one thread of one process; several processes may each work on their own seeds (start them with `spawn`).
    """
    rng = np.random.default_rng([seed, 11])
    scene, strays = make_scene(seed, difficulty, layout=layout), np.random.default_rng([seed, 13])
    if randomisation is not None:
        scene = randomisation.rescale(scene, strays)
    oracle = Oracle(scene)
    with World(scene, look=randomisation.look(strays) if randomisation else PLAIN) as world:
        walk = _Walk(scene, rng, steer)
        for _ in range(frames):
            walking = steer is not None or rng.random() < ROLLOUT_SHARE
            world.set_pose(*(walk.pose if walking else _glance(scene, rng)))
            if rng.random() < 0.5:
                world.set_gait(rng.uniform(0, 2 * math.pi), rng.uniform(0, 1))
            image, quality = world.render(), JPEG_QUALITY
            if randomisation is not None:
                image, quality = randomisation.sense(image, strays), randomisation.quality(strays)
            frame = _label(world, oracle, encode_jpeg(image, quality), rng, walk if walking else None)
            yield frame
            if walking:
                walk.follow(world, frame)


def random_pose(scene: Scene, rng: np.random.Generator) -> Pose:
    """Return a pose anywhere in the room whose footprint has some clearance."""
    for _ in range(500):
        x, y, yaw = rng.uniform(-1, 1, 3) * (scene.half_x, scene.half_y, math.pi)
        pose = Pose(float(x), float(y), float(yaw))
        if scene.obstacles.footprint_clearance(pose) >= _CLEARANCE:
            return pose
    return scene.start


def _glance(scene: Scene, rng: np.random.Generator) -> Pose:
    """Return a random pose, in four of five cases turned so that some object is in the field of view."""
    pose = random_pose(scene, rng)
    item = scene.objects[int(rng.integers(len(scene.objects)))]
    towards = math.atan2(item.y - pose.y, item.x - pose.x) + rng.uniform(-1, 1) * math.radians(42)
    turned = Pose(pose.x, pose.y, wrap(towards))
    look = rng.random() < 0.8 and scene.obstacles.footprint_clearance(turned) >= 0.0
    return turned if look else pose


class _Walk:
    """A sequence of walks, one after the other, each to a random target from a random place."""

    def __init__(self, scene: Scene, rng: np.random.Generator, steer: Steer | None) -> None:
        self._scene, self._rng, self._steer = scene, rng, steer
        self._begin()

    def _begin(self) -> None:
        self.target = int(self._rng.integers(len(self._scene.objects)))
        self._left = _MAX_ROLLOUT if self._steer is None else 2 * _MAX_ROLLOUT
        self.pose = _glance(self._scene, self._rng)
        self.done: list[NavigationAction] = []

    def follow(self, world: World, frame: LabelledFrame) -> None:
        """Take the action that the frame's labels or the policy name, and sometimes knock the robot off its course."""
        action = frame.questions[self.target].decision.action
        if self._steer is not None:
            given = self._steer(frame.jpeg, self._scene.objects[self.target].target, self.done)
            # who stops too early has to be shown the way on
            action = given if given is not None and (given != STOP or action == STOP) else action
        self._left -= 1
        if action.kind is ActionKind.STOP or self._left == 0:
            self._begin()
            return
        if self._steer is None and self._rng.random() < _ASTRAY:
            action = _TURNS[int(self._rng.integers(len(_TURNS)))]
        execute(world, action)
        self.done.append(action)
        self.pose = world.pose
        if self._steer is None and self._rng.random() < _PERTURBED:
            x, y, yaw = self._rng.normal(0, (0.08, 0.08, 0.2))
            knocked = Pose(self.pose.x + x, self.pose.y + y, wrap(self.pose.yaw + yaw))
            if self._scene.obstacles.footprint_clearance(knocked) >= 0.0:
                self.pose = knocked


def made_up(rng: np.random.Generator, visible: bool) -> tuple[NavigationAction, ...]:
    """Return actions that a robot may have done before it came here, often none, often a search."""
    kind = rng.random()
    if kind < 0.2:
        return ()
    before = [ACTIONS[int(i)] for i in rng.integers(len(ACTIONS) - 1, size=int(rng.integers(4)))]
    if kind < (0.45 if visible else 0.8):
        before += [SEARCH_TURN] * int(rng.integers(1, CIRCLE + 4))
        if rng.random() < 0.25:
            before.append(_FORWARDS[int(rng.integers(len(_FORWARDS)))])
    elif kind < 0.8:
        before.append(_TURNS[int(rng.integers(len(_TURNS)))])
    return tuple(before)


def _label(world: World, oracle: Oracle, jpeg: bytes, rng: np.random.Generator, walk: _Walk | None) -> LabelledFrame:
    scene, labels = world.scene, world.segmentation()
    sightings = observe(world, labels)
    asked: list[tuple[Target, int | None]] = [(item.target, item.index) for item in scene.objects]
    asked += [(target, None) for target in absent_targets(scene, sightings, rng)]
    questions = []
    for target, index in asked:
        if walk is not None and index == walk.target:
            done = tuple(walk.done)
        else:
            done = made_up(rng, index is not None and sightings[index].visible)
        questions.append(Question(target, index, oracle.decide(world.pose, index, sightings, done), done))
    cells = cell_labels(labels, sightings)
    return LabelledFrame(scene.seed, scene.difficulty, world.pose, jpeg, tuple(sightings), cells, tuple(questions))


def absent_targets(scene: Scene, sightings: list[Sighting], rng: np.random.Generator) -> tuple[Target, Target]:
    """Return two pairs that the scene lacks: a look-alike of something in view (where there is any), and any other."""
    present = {item.target for item in scene.objects}
    seen = [s for s in sightings if s.visible] or sightings
    like = seen[int(rng.integers(len(seen)))]
    alike = [Target(colour, like.object_class) for colour in COLOURS] + [Target(like.colour, name) for name in CLASSES]
    alike = [target for target in alike if target not in present]
    first = alike[int(rng.integers(len(alike)))]
    others = [Target(c, k) for c in COLOURS for k in CLASSES if Target(c, k) not in present and Target(c, k) != first]
    return first, others[int(rng.integers(len(others)))]
