"""Labelled frames for training: images, what they show, and what the teacher would do for every query.

Every question has a history: the frames that were looked at before (poses), what was done between them, and what the
robot's memory holds of it (`speculation.language.search_memory`). Some are the walk that the frame lies on, the
others are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from speculation.language.prompts import Blocked, Past, compose, parse_answer
from speculation.language.search_memory import SearchMemory
from vlm_nav_simulation.camera import Image, Labels
from vlm_nav_simulation.episode import MAX_BLOCKED, execute
from vlm_nav_simulation.geometry import Obstacles, Pose, nose_of, wrap
from vlm_nav_simulation.ground_truth import Doorway, Sighting, doorways, observe
from vlm_nav_simulation.histories import (
    FOCAL,
    FORWARDS,
    TURNS,
    History,
    is_to_and_fro,
    made_up,
    random_pose,
    remember,
    remembered_object,
    turn_to_remembered,
)
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.line_of_sight import ranges
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.oracle import Decision
from vlm_nav_simulation.queries import Query, absent_query, absent_targets, pick
from vlm_nav_simulation.scene import Difficulty, Scene, make_scene
from vlm_nav_simulation.search_teacher import Searcher
from vlm_nav_simulation.world import World

CELLS = 8
"""Token cells along a side: a 224-pixel frame in cells of 28 pixels, one image token each."""
MIN_COVERAGE = 0.05
JPEG_QUALITY = 90
ROLLOUT_SHARE = 0.7
_PERTURBED, _ASTRAY, _BUMP = 0.4, 0.2, 0.25
_MAX_ROLLOUT = 30
_FROM_START, _NOWHERE = 0.5, 0.25
"""Shares of walks from the scene's start, and of those for an object that the scene lacks."""
_MADE_UP = 0.5
"""Share of a walk's other questions whose history is made up."""
_COLUMN_RAYS = 4
"""Rays through a column of cells."""

Steer = Callable[[Sequence[tuple[str, bytes]]], Sequence[str]]
"""Prompts with their JPEG frames in, a policy's answers out."""


@dataclass(frozen=True)
class CellLabels:
    """Labels of the token cells of a frame, each [8, 8]."""

    object_class: npt.NDArray[np.int8]
    """Position in CLASSES of the object covering most of the cell, -1 where none covers 5 %."""
    colour: npt.NDArray[np.int8]
    """Position in COLOURS, or -1."""
    distance: npt.NDArray[np.float32]
    """Metres, or NaN."""


@dataclass(frozen=True)
class Question:
    """A query about a frame, and the teacher's answer."""

    query: Query
    object_index: int | None
    """The object that the answer is about; None: none that is right is in the scene."""
    decision: Decision
    done: tuple[Past, ...] = ()
    """Actions before it: the walk so far, or a made-up history."""
    memory: tuple[str, ...] = ()
    """What the robot's memory of that history says."""


@dataclass(frozen=True)
class LabelledFrame:
    """A frame with its labels."""

    jpeg: bytes
    sightings: tuple[Sighting, ...]
    cells: CellLabels
    questions: tuple[Question, ...]
    """About every object of the scene, two absent pairs, a class and a colour alone, and what a walk is for."""
    doorways: tuple[Doorway, ...] = ()
    """Those in view, nearest first."""
    free: tuple[float, ...] = ()
    """How far from the camera the nearest thing stands in each of the 8 columns of cells, metres along the floor."""

    @property
    def prompt(self) -> str:
        """What a policy that walks here is asked: about what the walk is for, which is the last question."""
        question = self.questions[-1]
        return compose(question.query.text, question.done, memory=question.memory)


Sampler = Generator[LabelledFrame, str | None, None]
"""Labelled frames of one scene. Where a policy walks, its answer to a frame's prompt is sent for the next one."""


def encode_jpeg(image: Image) -> bytes:
    """Return the JPEG bytes of an RGB image [H, W, 3]."""
    done, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
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
        classes[best].astype(np.int8),
        colours[best].astype(np.int8),
        distances[best].astype(np.float32),
    )


def sample_frames(
    seed: int,
    difficulty: Difficulty,
    frames: int = 25,
    layout: Layout = Layout.ROOM,
    steered: bool = False,
) -> Sampler:
    """Yield `frames` labelled frames of one scene; equal arguments yield equal frames.

    About 70 % lie on walks, half of them knocked off course; the rest are free poses anywhere, most of which look
    towards some object. The teacher walks, and errs now and then; with `steered` a policy walks, all the time, and the
    teacher labels what would have been right (DAgger, Ross, Gordon, Bagnell, arXiv 1011.0686); `side_by_side` asks it.
    Runs in one thread of one process; several processes may each work on their own seeds (start them with `spawn`).
    Raises ValueError where a policy walks and no answer is sent.
    """
    rng = np.random.default_rng([seed, 11])
    scene = make_scene(seed, difficulty, layout=layout)
    searcher = Searcher(scene)
    with World(scene) as world:
        walk = _Walk(scene, rng, steered)
        for _ in range(frames):
            walking = steered or rng.random() < ROLLOUT_SHARE
            world.set_pose(*(walk.pose if walking else _glance(scene, rng)))
            if rng.random() < 0.5:
                world.set_gait(rng.uniform(0, 2 * math.pi), rng.uniform(0, 1))
            frame = _label(world, searcher, encode_jpeg(world.render()), rng, walk if walking else None)
            answer = yield frame
            if walking:
                walk.follow(world, frame, answer)


def side_by_side(samplers: Sequence[Sampler], steer: Steer) -> list[list[LabelledFrame]]:
    """Return the frames of several scenes in which one policy walks; it is asked about one frame of each at a time."""
    made = [[next(sampler)] for sampler in samplers]
    going = list(range(len(samplers)))
    while going:
        answers = steer([(made[place][-1].prompt, made[place][-1].jpeg) for place in going])
        for place, answer in zip(tuple(going), answers, strict=True):
            try:
                made[place].append(samplers[place].send(answer))
            except StopIteration:
                going.remove(place)
    return made


def _glance(scene: Scene, rng: np.random.Generator) -> Pose:
    """Return a random pose, in four of five cases turned so that some object is in the field of view."""
    pose = random_pose(scene, rng)
    item = scene.objects[int(rng.integers(len(scene.objects)))]
    towards = math.atan2(item.y - pose.y, item.x - pose.x) + rng.uniform(-1, 1) * math.radians(42)
    turned = Pose(pose.x, pose.y, wrap(towards))
    look = rng.random() < 0.8 and scene.obstacles.footprint_clearance(turned) >= 0.0
    return turned if look else pose


class _Walk:
    """A sequence of walks, one after the other, each for a random query from the scene's start or a random place."""

    def __init__(self, scene: Scene, rng: np.random.Generator, steered: bool) -> None:
        self._scene, self._rng, self._steered = scene, rng, steered
        self._begin()

    def _begin(self) -> None:
        scene, rng = self._scene, self._rng
        item = scene.objects[scene.target_index if rng.random() < 0.5 else int(rng.integers(len(scene.objects)))]
        kind = rng.random()
        if kind < _NOWHERE:
            self.query = absent_query(scene, rng)
        elif kind < _NOWHERE + 0.15:
            self.query = Query("", item.object_class)
        elif kind < _NOWHERE + 0.2:
            self.query = Query(item.colour, "")
        else:
            self.query = Query(item.colour, item.object_class)
        self._left = 2 * _MAX_ROLLOUT if self._steered else _MAX_ROLLOUT
        self.pose = scene.start if rng.random() < _FROM_START else _glance(scene, rng)
        self.history, self._answers = History([self.pose]), SearchMemory()

    def memory(self, rng: np.random.Generator) -> SearchMemory:
        """Return the memory of the walk: what the policy's own answers noted, or what the teacher's would have."""
        if not self._steered:
            return remember(self._scene, self.history, self.query, rng)
        self._answers.look(*self.pose)
        return self._answers

    def follow(self, world: World, frame: LabelledFrame, answer: str | None) -> None:
        """Take the action that the frame's labels or the policy's answer name, and sometimes knock the robot off its
        course."""
        question = frame.questions[-1]
        action = question.decision.action
        if self._steered:
            if answer is None:
                raise ValueError("a policy walks here: send its answer to each frame (side_by_side does)")
            self._answers.read(answer, self.query.colour, self.query.object_class)
            given = parse_answer(answer).action
            # who stops too early or turns to and fro has to be shown the way on
            stays = given is None or (not given.kind.moves and given != action) or is_to_and_fro(question.done, given)
            action = action if given is None or stays else given
        self._left -= 1
        if not action.kind.moves or self._left == 0:
            self._begin()
            return
        if not self._steered and self._rng.random() < _ASTRAY:
            choices = FORWARDS if self._rng.random() < _BUMP else TURNS
            action = choices[int(self._rng.integers(len(choices)))]
        blocked = execute(world, action)
        self.history.done.append(Blocked(action) if blocked else action)
        last = self.history.done[-MAX_BLOCKED:]
        if len(last) == MAX_BLOCKED and all(isinstance(past, Blocked) for past in last):
            self._begin()
            return
        self.pose = world.pose
        if not self._steered and self._rng.random() < _PERTURBED:
            x, y, yaw = self._rng.normal(0, (0.08, 0.08, 0.2))
            knocked = Pose(self.pose.x + x, self.pose.y + y, wrap(self.pose.yaw + yaw))
            if self._scene.obstacles.footprint_clearance(knocked) >= 0.0:
                self.pose = knocked
        self.history.views.append(self.pose)


def _label(
    world: World, searcher: Searcher, jpeg: bytes, rng: np.random.Generator, walk: _Walk | None
) -> LabelledFrame:
    scene, labels = world.scene, world.segmentation()
    sightings = observe(world, labels)
    if walk is not None:
        walk.history.shown[world.pose] = tuple(sighting.index for sighting in sightings if sighting.visible)
    histories = [made_up(scene, searcher, world.pose, rng) for _ in range(2)]
    queries = [Query(item.colour, item.object_class) for item in scene.objects]
    queries += [Query(target.colour, target.object_class) for target in absent_targets(scene, sightings, rng)]
    queries += [Query("", pick(list(CLASSES), rng)), Query(pick(list(COLOURS), rng), "")]
    seen = [sighting for sighting in sightings if sighting.visible]
    if seen:
        sighting = seen[int(rng.integers(len(seen)))]
        queries.append(Query("", sighting.object_class) if rng.random() < 0.7 else Query(sighting.colour, ""))
    questions = []
    for query in queries:
        history = histories[int(rng.integers(len(histories)))]
        if walk is not None and rng.random() >= _MADE_UP:
            history = walk.history
        memory = remember(scene, history, query, rng)
        questions.append(_question(searcher, sightings, query, query.objects(scene), history, memory))
    if walk is not None:
        query, memory = walk.query, walk.memory(rng)
        questions.append(_question(searcher, sightings, query, query.objects(scene), walk.history, memory))
    cells = cell_labels(labels, sightings)
    return LabelledFrame(
        jpeg, tuple(sightings), cells, tuple(questions),
        tuple(doorways(scene, world.pose)), free_ranges(scene.obstacles, world.pose),
    )  # fmt: skip


def free_ranges(obstacles: Obstacles, pose: Pose) -> tuple[float, ...]:
    """Return how far from the camera the nearest thing stands in each column of cells, left to right, metres.

    Walls, furniture and objects, however low; infinite where there is nothing. A ray is cast every 7 pixels of the
    plain camera's view, so that a thin thing may stand between two.
    """
    pixels = (np.arange(CELLS * _COLUMN_RAYS) + 0.5) * 2 * FOCAL / (CELLS * _COLUMN_RAYS)
    angles = pose.yaw + np.arctan((FOCAL - pixels) / FOCAL)
    nearest = ranges(obstacles, nose_of(pose), angles).reshape(CELLS, _COLUMN_RAYS).min(axis=1)
    return tuple(map(float, nearest))


def _question(
    searcher: Searcher,
    sightings: Sequence[Sighting],
    query: Query,
    wanted: Sequence[int],
    history: History,
    memory: SearchMemory,
) -> Question:
    last = remembered_object(searcher.scene, memory, wanted)
    visible = [index for index in wanted if sightings[index].visible]
    misled = turn_to_remembered(history.views[-1], memory) if last is None and not visible else None
    decision = misled or searcher.decide(history.views, wanted, sightings, history.done, last)
    index = min(visible, key=lambda i: sightings[i].distance) if visible else wanted[0] if wanted else None
    return Question(query, index, decision, tuple(history.done), memory.lines())
