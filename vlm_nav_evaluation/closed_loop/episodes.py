"""One episode in the kinematic simulator: what a model finds that answers alone, in this process.

All exact modes give the target's answers, so success is counted once; what modes and links do to the robot's time is
measured by `acting`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.motion import PlanarPose
from spec_vlm_nav.sighting import Sighting, sighting, spread
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.prompts import Blocked, NavigationAction, Past, parse_answer
from speculation.progress import progress
from speculation.vlm.load import load_vlm
from speculation.wire import jpeg_of
from vlm_nav_evaluation.closed_loop.camera_views import Crop, shown
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.parallel import run_parallel
from vlm_nav_evaluation.search_prompts import PLAIN, Asking, SearchPrompts
from vlm_nav_simulation.camera import Image
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.geometry import GO2_MOUNT, CameraMount, Pose, nose_of
from vlm_nav_simulation.ground_truth import bearing_and_distance
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.queries import Query
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

ORACLE, TARGET, DRAFT = "oracle", "target", "draft"
MODELS = (TARGET, DRAFT)
POLICIES = (ORACLE, *MODELS)
ABSENT_ACTIONS = 80
"""A whole search of two rooms takes more actions than a walk to what is there."""


@dataclass(frozen=True)
class Setting:
    """What all episodes of one run share."""

    edge: EdgeConfig
    """The draft model, and how models answer and are shown frames."""
    target_model: Path
    object_name: str = "silver bottle"
    """A colour and a class; empty: each seed's own."""
    max_actions: int = 40
    """A search for what is absent may take at least `ABSENT_ACTIONS`."""
    how: Asking = PLAIN


class Asked(str, Enum):
    """What a room is searched for."""

    TARGET = "target"
    ABSENT = "absent"
    CLASS = "class"
    COLOUR = "colour"

    def query(self, scene: Scene) -> Query:
        """Return the query. What is absent is a pair that the room lacks, the same for every policy."""
        target = scene.target
        if self is Asked.ABSENT:
            rng = np.random.default_rng([scene.seed, 17])
            pairs = [Query(colour, kind) for colour in COLOURS for kind in CLASSES]
            missing = [pair for pair in pairs if not pair.objects(scene)]
            return missing[int(rng.integers(len(missing)))]
        colour = "" if self is Asked.CLASS else target.colour
        return Query(colour, "" if self is Asked.COLOUR else target.object_class)


@dataclass(frozen=True)
class EpisodeKey:
    """Which episode."""

    difficulty: str
    seed: int
    policy: str
    layout: str = Layout.ROOM.value
    asked: str = Asked.TARGET.value
    mount: CameraMount = GO2_MOUNT
    crop: str = Crop.NONE.value
    """A `Crop`: what models see of the camera's frames."""


class Placed(NamedTuple):
    """Where an answer placed what was searched for (`spec_vlm_nav.sighting`): how far off, in the camera's directions.

    Metres; the true distance is that of the object's surface from the camera.
    """

    true_metres: float
    along: float
    """How much too far away."""
    across: float
    """How much too far to the left."""

    @property
    def deviations(self) -> float:
        """How many standard deviations it is off, by the covariance that is published."""
        named = self.along + math.sqrt(max(0.0, self.true_metres**2 - self.across**2))
        along, across = spread(named)
        return math.hypot(self.along / along, self.across / across)

    @classmethod
    def of(cls, named: Sighting, bearing: float, metres: float, pose: Pose) -> Placed:
        """Return how far a sighting is off what stands at this bearing and distance from the nose of a pose."""
        (x, y), truth = nose_of(pose), pose.yaw + bearing
        off = np.array([named.x - x - metres * math.cos(truth), named.y - y - metres * math.sin(truth)])
        cos, sin = math.cos(named.yaw), math.sin(named.yaw)
        along, across = off @ np.array([[cos, -sin], [sin, cos]])
        return cls(round(metres, 4), round(float(along), 4), round(float(across), 4))


@dataclass(frozen=True, kw_only=True)
class Episode(EpisodeKey):
    """A finished episode."""

    target: str
    object_class: str
    outcome: str
    success: bool
    actions: tuple[str, ...]
    path_m: float
    collisions: int
    gap_m: float
    sightings: tuple[Placed, ...] = ()

    @property
    def key(self) -> EpisodeKey:
        """Return which episode this is."""
        return EpisodeKey(**{each.name: getattr(self, each.name) for each in fields(EpisodeKey)})


def model_alone(policy: str, setting: Setting) -> ModelAlone:
    """Return the model of a policy. Raises ValueError for one that cannot be used."""
    folder = setting.target_model if policy == TARGET else setting.edge.draft_model
    decoding = setting.edge.decoding
    return ModelAlone(load_vlm(folder, setting.edge.draft), decoding.max_tokens, decoding.answers)


def run_one(key: EpisodeKey, setting: Setting, model: ModelAlone | None) -> Episode:
    """Run one episode; None for the oracle. Raises ValueError for a difficulty or object that cannot be used."""
    scene = scene_of(key.seed, key.difficulty, setting.object_name, key.layout)
    query = Asked(key.asked).query(scene)
    wanted = query.objects(scene)
    crop = Crop(key.crop)
    look = shown(key.mount, crop)
    placed: list[Placed] = []
    if model is None:
        policy = oracle_policy(scene, wanted)
    else:
        prompts = SearchPrompts(query, setting.how)
        done = list[Past]()
        seen = deque[bytes](maxlen=setting.edge.frames)

        def policy(frame: Image, world: World) -> NavigationAction | None:
            seen.append(encode_jpeg(look(frame)))
            if done and world.blocked and isinstance(done[-1], NavigationAction):
                done[-1] = Blocked(done[-1])
            text = model.text(Question(prompts.ask(world.pose, done), jpeg_of(seen)))
            prompts.read(text)
            named = sighting(text, query.colour, query.object_class, PlanarPose(*world.pose), crop.fov_deg(key.mount))
            if named is not None and len(wanted) == 1:
                truth = bearing_and_distance(world.pose, scene.objects[wanted[0]])
                placed.append(Placed.of(named, *truth, world.pose))
            # None: the real robot would stand, look again, see the same and give up, since the answer is greedy.
            action = parse_answer(text).action
            if action is not None:
                done.append(action)
            return action

    most = setting.max_actions if wanted else max(setting.max_actions, ABSENT_ACTIONS)
    result = run_episode(scene, policy, most, crop.source_size, wanted, key.mount)
    return Episode(
        **vars(key),
        target=query.text.removeprefix("find the ").removeprefix("find "),
        object_class=query.object_class or scene.target.object_class,
        outcome=result.outcome.value,
        success=result.success,
        actions=tuple(action.text for action in result.actions),
        path_m=round(result.path_length, 4),
        collisions=result.collisions,
        gap_m=round(result.final_gap, 4) if wanted else 0.0,
        sightings=tuple(placed),
    )


def finished(journal: Journal) -> dict[EpisodeKey, Episode]:
    """Return the episodes that a journal holds."""
    return {episode.key: episode for episode in (msgspec.convert(piece, Episode) for piece in journal.pieces())}


def walk(keys: Sequence[EpisodeKey], setting: Setting, journal: Journal, processes: int) -> list[Episode]:
    """Return the episodes of all keys: those of the journal, and the others, which are run and put into it."""
    done = finished(journal)
    missing = [(key, setting) for key in keys if key not in done]
    with progress(total=len(keys), initial=len(keys) - len(missing), unit="episode") as bar:
        for episode in run_parallel(_run, missing, processes):
            journal.add(asdict(episode))
            done[episode.key] = episode
            bar.update()
    _model.cache_clear()
    return [done[key] for key in keys]


@lru_cache(maxsize=len(MODELS))
def _model(policy: str, setting: Setting) -> ModelAlone:
    """Return a model of this process, loaded by its first episode."""
    return model_alone(policy, setting)


def _run(key: EpisodeKey, setting: Setting) -> Episode:
    return run_one(key, setting, None if key.policy == ORACLE else _model(key.policy, setting))
