"""Labelled frames for training: images, what they show, and what the teacher would do for every query.

Every question has a history: the frames that were looked at before (poses), what was done between them, and what the
robot's memory holds of it (`speculation.language.memory`). Some are the walk that the frame lies on, the others are
made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

from speculation.language.instructions import Relation, Understood
from speculation.language.memory import DOORWAY, SIDE_PHRASES, SearchMemory, describe_distance
from speculation.language.prompts import (
    MOTIONS,
    ActionKind,
    Blocked,
    NavigationAction,
    Past,
    Target,
    compose,
    parse_answer,
)
from vlm_nav_simulation.camera import Image, Labels
from vlm_nav_simulation.episode import MAX_BLOCKED, execute
from vlm_nav_simulation.geometry import Box, Obstacles, Pose, nose_of, wrap
from vlm_nav_simulation.ground_truth import (
    MIN_PIXELS,
    Doorway,
    Sighting,
    bearing_and_distance,
    doorways,
    observe,
    side_of,
)
from vlm_nav_simulation.layouts import WALL_THICKNESS, Area, Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.oracle import CIRCLE, FACING, SEARCH_TURN, Decision, Reason, turn_by
from vlm_nav_simulation.randomisation import JPEG_QUALITY, Randomisation
from vlm_nav_simulation.scene import Difficulty, Scene, SceneObject, make_scene
from vlm_nav_simulation.searching import Searcher
from vlm_nav_simulation.sight import ranges, sight_fractions
from vlm_nav_simulation.stage import PLAIN
from vlm_nav_simulation.world import World

CELLS = 8
"""Token cells along a side: a 224-pixel frame in cells of 28 pixels, one image token each."""
MIN_COVERAGE = 0.05
ROLLOUT_SHARE = 0.7
_PERTURBED, _ASTRAY, _BUMP = 0.4, 0.2, 0.25
_MAX_ROLLOUT = 30
_FROM_START, _NOWHERE = 0.5, 0.25
"""Shares of walks from the scene's start, and of those for an object that the scene lacks."""
_MAX_TO_AND_FRO = 6
"""Turns, each undoing the one before, at the end of a made-up history."""
_MADE_UP = 0.5
"""Share of a walk's other questions whose history is made up."""
_NOTED, _NOTE_BEARING, _NOTE_METRES = 0.85, math.radians(6.0), 0.12
"""What a model's answers would note: how often, and how wrong (standard deviations; distance as a share)."""
_FOCAL, _COVERED, _EDGE = 112.0, 0.7, math.radians(45.0)
"""Of a frame of 224 pixels: focal length, pixels; share of its box that an object covers; half the field of view."""
_COLUMN_RAYS = 4
"""Rays through a column of cells."""
_STEP = 0.75
"""Between two frames of a made-up way, metres."""
_SAME_OBJECT = 1.5
"""Further than this from where the memory has it, metres, an object is not what was seen there."""
_CLEARANCE = 0.1
"""Free space around a random pose's footprint, metres."""

Steer = Callable[[Sequence[tuple[str, bytes]]], Sequence[str]]
"""Prompts with their JPEG frames in, a policy's answers out."""

_FORWARDS = tuple(action for action in MOTIONS if action.kind is ActionKind.FORWARD)
_TURNS = tuple(action for action in MOTIONS if action.radians)


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
class Query:
    """What is asked for: a colour and a class, or one of them alone (the other is empty), and where it is."""

    colour: str
    object_class: str
    relation: Relation | None = None

    @property
    def text(self) -> str:
        """The instruction, in the one wording that models of prompt form 2 are asked in."""
        return Understood(self.colour, self.object_class, self.relation).instruction

    def objects(self, scene: Scene) -> tuple[int, ...]:
        """Return the objects any of which is right by colour and class; a relation depends on where one looks from."""
        return tuple(
            item.index
            for item in scene.objects
            if self.colour in ("", item.colour) and self.object_class in ("", item.object_class)
        )


@dataclass
class History:
    """What one search looked at and did, up to a frame: its poses, the newest last, and the actions between them."""

    views: list[Pose]
    done: list[Past] = field(default_factory=list)
    shown: dict[Pose, tuple[int, ...]] = field(default_factory=dict)
    """Objects in view from a pose: those of a rendered frame, else by geometry."""
    doors: dict[Pose, tuple[Doorway, ...]] = field(default_factory=dict)
    """Doorways in view from a pose."""


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

    seed: int
    difficulty: Difficulty
    pose: Pose
    jpeg: bytes
    """A JPEG of quality 90 unless randomised."""
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
    scene, strays = make_scene(seed, difficulty, layout=layout), np.random.default_rng([seed, 13])
    if randomisation is not None:
        scene = randomisation.rescale(scene, strays)
    searcher = Searcher(scene)
    with World(scene, look=randomisation.look(strays) if randomisation else PLAIN) as world:
        walk = _Walk(scene, rng, steered)
        for _ in range(frames):
            walking = steered or rng.random() < ROLLOUT_SHARE
            world.set_pose(*(walk.pose if walking else _glance(scene, rng)))
            if rng.random() < 0.5:
                world.set_gait(rng.uniform(0, 2 * math.pi), rng.uniform(0, 1))
            image, quality = world.render(), JPEG_QUALITY
            if randomisation is not None:
                image, quality = randomisation.sense(image, strays), randomisation.quality(strays)
            frame = _label(world, searcher, encode_jpeg(image, quality), rng, walk if walking else None)
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
    """A sequence of walks, one after the other, each for a random query from the scene's start or a random place."""

    def __init__(self, scene: Scene, rng: np.random.Generator, steered: bool) -> None:
        self._scene, self._rng, self._steered = scene, rng, steered
        self._begin()

    def _begin(self) -> None:
        scene, rng = self._scene, self._rng
        item = scene.objects[scene.target_index if rng.random() < 0.5 else int(rng.integers(len(scene.objects)))]
        kind = rng.random()
        if kind < _NOWHERE:
            self.query = _absent_query(scene, rng)
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
            stays = given is None or (not given.kind.moves and given != action) or _to_and_fro(question.done, given)
            action = action if given is None or stays else given
        self._left -= 1
        if not action.kind.moves or self._left == 0:
            self._begin()
            return
        if not self._steered and self._rng.random() < _ASTRAY:
            choices = _FORWARDS if self._rng.random() < _BUMP else _TURNS
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


def made_up(scene: Scene, searcher: Searcher, pose: Pose, rng: np.random.Generator) -> History:
    """Return what a robot may have looked at and done before it came to `pose`: often nothing, often a search."""
    views, done = [pose], list[Past]()
    kind = rng.random()
    if kind < 0.15:
        return History(views)
    if kind < 0.5:
        turns = int(rng.integers(1, CIRCLE + 2))
        done = [SEARCH_TURN] * turns
        views = [Pose(pose.x, pose.y, wrap(pose.yaw - k * SEARCH_TURN.radians)) for k in range(turns, 0, -1)]
        views.append(pose)
    elif kind < 0.8:
        turn = _TURNS[int(rng.integers(len(_TURNS)))]
        # No walk of a teacher turns to and fro; a model that does goes on so, unless it was taught what comes after.
        turns = 1 if kind < 0.65 else int(rng.integers(2, _MAX_TO_AND_FRO + 1))
        done = list[Past](turn if k % 2 == 0 else _back(turn) for k in range(turns))[::-1]
        before = Pose(pose.x, pose.y, wrap(pose.yaw - turn.radians))
        views = [pose if k % 2 == 0 else before for k in range(turns + 1)][::-1]
    first = views[0]
    if rng.random() < 0.5:
        ahead = _FORWARDS[int(rng.integers(len(_FORWARDS)))]
        back = Pose(
            first.x - ahead.metres * math.cos(first.yaw), first.y - ahead.metres * math.sin(first.yaw), first.yaw
        )
        if scene.obstacles.footprint_clearance(back) >= 0.0:
            views, done = [back, *views], [ahead, *done]
    kind = rng.random()
    elsewhere = [random_pose(scene, rng)] if kind < 0.3 else [p for _, p in searcher.places] if kind < 0.45 else []
    for place in reversed(elsewhere):
        turns = CIRCLE if kind >= 0.3 else int(rng.integers(CIRCLE + 1))
        around = [Pose(place.x, place.y, wrap(place.yaw + k * SEARCH_TURN.radians)) for k in range(turns + 1)]
        way = _way(scene, place, views[0])
        views, done = [*around, *way, *views], [*[SEARCH_TURN] * turns, *[_FORWARDS[-1]] * (len(way) + 1), *done]
    return History(views, done)


def _to_and_fro(done: Sequence[Past], action: NavigationAction) -> bool:
    """Return whether an action would be the third turn in a row, each to the other side than the one before."""
    turns = [past.radians if isinstance(past, NavigationAction) else 0.0 for past in (*done[-2:], action)]
    return len(turns) == 3 and all(a * b < 0.0 for a, b in pairwise(turns))


def _back(turn: NavigationAction) -> NavigationAction:
    """Return the turn that undoes one."""
    return next(each for each in _TURNS if each.radians == -turn.radians)


def _way(scene: Scene, start: Pose, end: Pose) -> list[Pose]:
    """Return frames on the way from one place to another: straight, but through doorways where areas differ."""
    areas = [scene.area_at(pose.x, pose.y) for pose in (start, end)]
    points = [start[:2]]
    if areas[0] != areas[1]:
        doors = [[door for door in scene.plan.doorways if _leads_to(door, area)] for area in areas]
        shared = [door for door in doors[0] if door in doors[1]]
        points += [(door.x, door.y) for door in shared[:1] or (*doors[0], *doors[1])]
    points.append(end[:2])
    way: list[Pose] = []
    for a, b in pairwise(points):
        steps, yaw = max(1, round(math.dist(a, b) / _STEP)), math.atan2(b[1] - a[1], b[0] - a[0])
        way += [Pose(a[0] + (b[0] - a[0]) * k / steps, a[1] + (b[1] - a[1]) * k / steps, yaw) for k in range(steps)]
    return way[1:]


def _leads_to(door: Box, area: Area) -> bool:
    apart = abs(door.x - area.x) - area.half_x - door.half_x, abs(door.y - area.y) - area.half_y - door.half_y
    return max(apart) <= WALL_THICKNESS


def remember(scene: Scene, history: History, query: Query, rng: np.random.Generator) -> SearchMemory:
    """Return the memory of a history after answers that name most of what is in view, about where it is.

    It reads them as the robot's does. The last view's own answer is not given yet.
    """
    memory, wanted = SearchMemory(), query.objects(scene)
    _show(scene, history)
    for view in history.views[:-1]:
        memory.look(*view)
        memory.read(_answer(scene, history, view, wanted, rng), query.colour, query.object_class)
    memory.look(*history.views[-1])
    return memory


def _answer(scene: Scene, history: History, view: Pose, wanted: Sequence[int], rng: np.random.Generator) -> str:
    """Return what an answer about a view says of the object, or, where it does not see it, of doorways."""
    seen = [index for index in wanted if index in history.shown[view]]
    if seen and rng.random() < _NOTED:
        item = min((scene.objects[index] for index in seen), key=lambda item: bearing_and_distance(view, item)[1])
        return _words(item.target.text, *bearing_and_distance(view, item), rng)
    if view not in history.doors:
        history.doors[view] = tuple(doorways(scene, view))
    noted = [door for door in history.doors[view] if rng.random() < _NOTED]
    return " ".join(_words(DOORWAY, door.bearing, door.distance, rng) for door in noted)


def _words(name: str, bearing: float, distance: float, rng: np.random.Generator) -> str:
    side = side_of(bearing + rng.normal(0, _NOTE_BEARING))
    away = describe_distance(distance * (1 + rng.normal(0, _NOTE_METRES)))
    return f"The {name} is {SIDE_PHRASES[side.value][0]}, about {away} away."


def _show(scene: Scene, history: History) -> None:
    """Note the objects in view from poses whose frames were not rendered."""
    views = [view for view in dict.fromkeys(history.views[:-1]) if view not in history.shown]
    shown = [_in_view(scene, views, item) for item in scene.objects] if views else []
    for place, view in enumerate(views):
        history.shown[view] = tuple(item.index for item, seen in zip(scene.objects, shown, strict=True) if seen[place])


def _in_view(scene: Scene, views: Sequence[Pose], item: SceneObject) -> list[bool]:
    """Return for each view whether its frame would show enough of an object, by geometry."""
    pixels = np.zeros(len(views))
    for place, view in enumerate(views):
        bearing, distance = bearing_and_distance(view, item)
        middle = distance + item.radius
        if abs(bearing) <= _EDGE + math.atan(item.radius / middle) / 2:
            pixels[place] = _COVERED * 2 * item.radius * item.disc.height * (_FOCAL / middle) ** 2
    large = np.flatnonzero(pixels >= MIN_PIXELS)
    if len(large):
        eyes = np.array([nose_of(views[place]) for place in large.tolist()])
        pixels[large] *= sight_fractions(scene.obstacles, eyes, item.disc)
    return [bool(count >= MIN_PIXELS) for count in pixels]


def _remembered(scene: Scene, memory: SearchMemory, wanted: Sequence[int]) -> int | None:
    """Return which of the wanted objects stands where the memory has it, None where none does."""
    if memory.last is None or not wanted:
        return None
    last = memory.last
    apart, index = min((math.dist(last, (scene.objects[i].x, scene.objects[i].y)), i) for i in wanted)
    return index if apart <= _SAME_OBJECT else None


def _misled(pose: Pose, memory: SearchMemory) -> Decision | None:
    """Return the turn to where a memory has what never was there: who knows the memory alone has to look."""
    if memory.last is None:
        return None
    bearing = wrap(math.atan2(memory.last[1] - pose.y, memory.last[0] - pose.x) - pose.yaw)
    return Decision(turn_by(bearing), Reason.RETURN) if abs(bearing) > FACING else None


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
    queries += [Query("", _any(list(CLASSES), rng)), Query(_any(list(COLOURS), rng), "")]
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
    if (related := related_query(scene, sightings, rng)) is not None:
        query, index = related
        memory = remember(scene, histories[0], query, rng)
        questions.append(_question(searcher, sightings, query, (index,), histories[0], memory))
    if walk is not None:
        query, memory = walk.query, walk.memory(rng)
        questions.append(_question(searcher, sightings, query, query.objects(scene), walk.history, memory))
    cells = cell_labels(labels, sightings)
    return LabelledFrame(
        scene.seed, scene.difficulty, world.pose, jpeg, tuple(sightings), cells, tuple(questions),
        tuple(doorways(scene, world.pose)), free_ranges(scene.obstacles, world.pose),
    )  # fmt: skip


def free_ranges(obstacles: Obstacles, pose: Pose) -> tuple[float, ...]:
    """Return how far from the camera the nearest thing stands in each column of cells, left to right, metres.

    Walls, furniture and objects, however low; infinite where there is nothing. A ray is cast every 7 pixels of the
    plain camera's view, so that a thin thing may stand between two.
    """
    pixels = (np.arange(CELLS * _COLUMN_RAYS) + 0.5) * 2 * _FOCAL / (CELLS * _COLUMN_RAYS)
    angles = pose.yaw + np.arctan((_FOCAL - pixels) / _FOCAL)
    nearest = ranges(obstacles, nose_of(pose), angles).reshape(CELLS, _COLUMN_RAYS).min(axis=1)
    return tuple(map(float, nearest))


def related_query(scene: Scene, sightings: Sequence[Sighting], rng: np.random.Generator) -> tuple[Query, int] | None:
    """Return a query for something by where it is ('the chair left of the lamp'), and the one object that is right.

    Seen from the frame; first for objects of whose class others are in view. None where no two are in view that one
    word tells from the others.
    """
    seen = [sighting for sighting in sightings if sighting.visible]
    pairs = [(one, other) for one in seen for other in seen if one.index != other.index]
    rng.shuffle(pairs)
    pairs.sort(key=lambda pair: all(s.object_class != pair[0].object_class for s in seen if s.index != pair[0].index))
    for one, other in pairs:
        words = [word for word, holds in RELATIONS.items() if holds(scene, one, other)]
        colour = other.colour if sum(s.object_class == other.object_class for s in seen) > 1 else ""
        alike = [s for s in seen if s.object_class == one.object_class and s.index not in (one.index, other.index)]
        words = [word for word in words if not any(RELATIONS[word](scene, each, other) for each in alike)]
        if words and (one.object_class != other.object_class or colour):
            relation = Relation(_any(words, rng), colour, other.object_class)
            return Query("", one.object_class, relation), one.index
    return None


def _near(scene: Scene, one: Sighting, other: Sighting) -> bool:
    a, b = scene.objects[one.index], scene.objects[other.index]
    return math.hypot(a.x - b.x, a.y - b.y) - a.radius - b.radius <= _NEXT_TO


def _before(one: Sighting, other: Sighting) -> bool:
    return abs(one.bearing - other.bearing) <= _IN_LINE and other.distance - one.distance >= _NEARER


_APART, _IN_LINE, _NEXT_TO, _NEARER = math.radians(8.0), math.radians(10.0), 0.6, 0.6
"""What relations mean, in bearings (radians) and distances (metres)."""
RELATIONS: dict[str, Callable[[Scene, Sighting, Sighting], bool]] = {
    "left of": lambda _, one, other: one.bearing - other.bearing >= _APART,
    "right of": lambda _, one, other: other.bearing - one.bearing >= _APART,
    "next to": _near,
    "in front of": lambda _, one, other: _before(one, other),
    "behind": lambda _, one, other: _before(other, one),
}


def _question(
    searcher: Searcher,
    sightings: Sequence[Sighting],
    query: Query,
    wanted: Sequence[int],
    history: History,
    memory: SearchMemory,
) -> Question:
    last = _remembered(searcher.scene, memory, wanted)
    visible = [index for index in wanted if sightings[index].visible]
    misled = _misled(history.views[-1], memory) if last is None and not visible else None
    decision = misled or searcher.decide(history.views, wanted, sightings, history.done, last)
    index = min(visible, key=lambda i: sightings[i].distance) if visible else wanted[0] if wanted else None
    return Question(query, index, decision, tuple(history.done), memory.lines())


def _any(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def _absent_query(scene: Scene, rng: np.random.Generator) -> Query:
    present = {item.target for item in scene.objects}
    pairs = [Target(c, k) for c in COLOURS for k in CLASSES if Target(c, k) not in present]
    target = pairs[int(rng.integers(len(pairs)))]
    classes = [k for k in CLASSES if all(item.object_class != k for item in scene.objects)]
    if classes and rng.random() < 0.15:
        return Query("", _any(classes, rng))
    return Query(target.colour, target.object_class)


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
