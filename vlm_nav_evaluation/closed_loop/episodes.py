"""One episode in the kinematic simulator with a clock: the answer's own time, then the motion's.

While an answer is decoded the robot stands, so decoding methods that give the same tokens give the same walk and differ
in time alone. Motion takes what the robot's own control loop takes on an ideal base.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from edge_drafter import DecodingStats, DraftingConfig, Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.motion import Motion, MotionConfig, Outcome, PlanarPose, wrap
from spec_vlm_nav.navigator import SETTLE_S
from spec_vlm_nav.safety import Limits, SlewLimiter
from spec_vlm_nav.sighting import Sighting, sighting, spread
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.prompts import Blocked, NavigationAction, Past, ResponseOrder, parse_answer
from speculation.progress import progress as bar
from speculation.vlm.load import load_vlm
from speculation.wire import Jpegs, jpeg_of
from speculation.worker_processes import worker_pool
from vlm_nav_evaluation.closed_loop.camera_views import Crop, shown
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.search_prompts import SearchPrompts
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
MODES = (TARGET, DRAFT, *(mode.value for mode in Mode))
"""Answering policies; `target` and `draft` run in this process, without link and drafter: for success, not for time."""
POLICIES = (ORACLE, *MODES)
SIM_MOTION = MotionConfig(forward_speed=0.45, turn_speed=0.7)
SIM_LIMITS = Limits(vx=0.5, wz=0.8)
"""Executor and bridge as config/sim.yaml sets them."""
CONTROL_S = 0.05
ABSENT_ACTIONS = 80
"""A whole search of two rooms takes more actions than a walk to what is there."""
R = TypeVar("R")
COUNTS = ("tokens", "cloud_passes", "drafted", "accepted", "interruptions")


def is_linked(policy: str) -> bool:
    """Whether a policy needs a verifier."""
    return policy not in (ORACLE, TARGET, DRAFT) and DraftingConfig.of(policy).needs_link


def is_timed(policy: str) -> bool:
    """Whether a policy's answers take the time that a robot would wait; the oracle's take none."""
    return policy not in (TARGET, DRAFT)


@dataclass(frozen=True)
class Setting:
    """What all episodes of one run share."""

    edge: EdgeConfig
    """How answers are decoded; its mode and extra round trip are those of each episode."""
    target_model: Path
    object_name: str = "silver bottle"
    """A colour and a class; empty: each seed's own."""
    max_actions: int = 40
    """A search for what is absent may take at least `ABSENT_ACTIONS`."""
    order: ResponseOrder = ResponseOrder.REASON_FIRST
    guide: bool = False
    """How models are asked, as in `speculation.language.prompts.compose`."""
    form: int = 1
    """Form of the target's prompts, see `speculation.language.prompts.Vocabulary`."""


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
    rtt_ms: float | None
    """A round trip on top of the profile's own, ms; None for a policy without a link."""
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
    """A finished episode: what was walked, and where its time went."""

    target: str
    object_class: str
    outcome: str
    success: bool
    actions: tuple[str, ...]
    path_m: float
    collisions: int
    gap_m: float
    moving_s: float
    standing_s: float | None
    """Answers, and the settling before each frame; None where the policy has no times."""
    answers_s: tuple[float, ...]
    tokens: int = 0
    cloud_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    interruptions: int = 0
    sightings: tuple[Placed, ...] = ()

    @property
    def key(self) -> EpisodeKey:
        """Return which episode this is."""
        return EpisodeKey(**{each.name: getattr(self, each.name) for each in fields(EpisodeKey)})

    @property
    def total_s(self) -> float | None:
        """Return the seconds from the first look to the end."""
        return None if self.standing_s is None else self.standing_s + self.moving_s


Answerer = Callable[[str, Jpegs], "tuple[str, DecodingStats | None]"]
"""Prompt and frames in; the answer's text and what it took out, None where it was not decoded by the edge."""


class Answerers:
    """The models and links of one process, opened when first asked for. Close it in the end."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._alone: dict[str, ModelAlone] = {}
        self._edge: EdgeDecoder | None = None
        self._rtt_ms: float | None = None
        self._warm: set[str] = set()

    def of(self, policy: str, rtt_ms: float | None) -> Answerer:
        """Return what answers as `policy` over a link of this round trip. Raises ValueError for models that fail.

        Decoding raises VerifierLost or AnswerLate.
        """
        config = self._setting.edge
        if not is_timed(policy):
            if policy not in self._alone:
                folder = self._setting.target_model if policy == TARGET else config.draft_model
                decoding = config.decoding
                self._alone[policy] = ModelAlone(load_vlm(folder, config.draft), decoding.max_tokens, decoding.answers)
            model = self._alone[policy]
            return lambda prompt, jpeg: (model.text(Question(prompt, jpeg)), None)
        if self._edge is None or rtt_ms not in (None, self._rtt_ms):
            # Another round trip needs another link.
            self.close()
            self._warm.clear()
            self._rtt_ms = rtt_ms
            mode = Mode.EDGE if rtt_ms is None else Mode.FSD
            self._edge = EdgeDecoder(config.changed(mode=mode.value, extra_rtt_s=(rtt_ms or 0.0) / 1e3))
        edge = self._edge

        def answer(prompt: str, jpeg: Jpegs) -> tuple[str, DecodingStats | None]:
            if policy not in self._warm:
                # The first answer pays for the handshake, for first calls into the libraries and for estimates.
                edge.decode(prompt, jpeg, mode=policy)
                self._warm.add(policy)
            result = edge.decode(prompt, jpeg, mode=policy)
            return edge.text(result.tokens), result.stats

        return answer

    def close(self) -> None:
        """Close the link."""
        if self._edge is not None:
            self._edge.close()
            self._edge = None


def run_one(key: EpisodeKey, setting: Setting, answerers: Answerers) -> Episode:
    """Run one episode. Raises ValueError for a difficulty, object or model that cannot be used."""
    scene = scene_of(key.seed, key.difficulty, setting.object_name, key.layout)
    query = Asked(key.asked).query(scene)
    wanted = query.objects(scene)
    crop = Crop(key.crop)
    look = shown(key.mount, crop)
    answers: list[tuple[str, DecodingStats | None]] = []
    placed: list[Placed] = []
    if key.policy == ORACLE:
        policy = oracle_policy(scene, wanted)
    else:
        ask = answerers.of(key.policy, key.rtt_ms)
        named = (query.text, query.colour, query.object_class)
        prompts = SearchPrompts(*named, setting.order, setting.guide, setting.form)
        done = list[Past]()
        seen = deque[bytes](maxlen=setting.edge.frames)

        def policy(frame: Image, world: World) -> NavigationAction | None:
            seen.append(encode_jpeg(look(frame)))
            if done and world.blocked and isinstance(done[-1], NavigationAction):
                done[-1] = Blocked(done[-1])
            answers.append(ask(prompts.ask(world.pose, done), jpeg_of(seen)))
            text = answers[-1][0]
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
    stats = [entry for _, entry in answers if entry is not None]
    answers_s = tuple(entry.total_s for entry in stats)
    looks = len(result.actions) if key.policy == ORACLE else len(answers)
    legs = zip(result.actions, result.poses, result.poses[1:], strict=False)
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
        moving_s=round(sum(motion_seconds(action, progress(action, a, b)) for action, a, b in legs), 4),
        standing_s=round(sum(answers_s) + looks * SETTLE_S, 6) if is_timed(key.policy) else None,
        answers_s=tuple(round(seconds, 6) for seconds in answers_s),
        sightings=tuple(placed),
        **{name: sum(getattr(entry, name) for entry in stats) for name in COUNTS},
    )


def in_processes(work: Callable[..., R], jobs: Sequence[Sequence[Any]], processes: int, prepared: str) -> Iterator[R]:
    """Yield what `work` makes of each job as it ends, in this process or in several that have imported `prepared`."""
    if processes == 1 or len(jobs) < 2:
        yield from (work(*job) for job in jobs)
        return
    with worker_pool(min(processes, len(jobs)), [prepared]) as pool:
        for future in as_completed([pool.submit(work, *job) for job in jobs]):
            yield future.result()


def finished(journal: Journal) -> dict[EpisodeKey, Episode]:
    """Return the episodes that a journal holds."""
    return {episode.key: episode for episode in (msgspec.convert(piece, Episode) for piece in journal.pieces())}


def walk(keys: Sequence[EpisodeKey], setting: Setting, journal: Journal, processes: int) -> list[Episode]:
    """Return the episodes of all keys: those of the journal, and the others, which are run and put into it."""
    done = finished(journal)
    missing = [(key, setting) for key in keys if key not in done]
    with bar(total=len(keys), initial=len(keys) - len(missing), unit="episode") as shown:
        try:
            for episode in in_processes(_run, missing, processes, __name__):
                journal.add(asdict(episode))
                done[episode.key] = episode
                shown.update()
        finally:
            _answerers(setting).close()
            _answerers.cache_clear()
    return [done[key] for key in keys]


@lru_cache(maxsize=1)
def _answerers(setting: Setting) -> Answerers:
    """Return the models of this process, opened by its first episode."""
    return Answerers(setting)


def _run(key: EpisodeKey, setting: Setting) -> Episode:
    return run_one(key, setting, _answerers(setting))


def progress(action: NavigationAction, before: Pose, after: Pose) -> float:
    """Return how far an action got: metres ahead, or radians in its direction."""
    if action.radians:
        return math.copysign(1.0, action.radians) * wrap(after.yaw - before.yaw)
    return (after.x - before.x) * math.cos(before.yaw) + (after.y - before.y) * math.sin(before.yaw)


def motion_seconds(action: NavigationAction, reached: float) -> float:
    """Return how long executor and bridge take for an action on an ideal base that gets `reached` m or rad far.

    A base that cannot go on costs the time until the executor notices. Stop takes none.
    """
    goal = abs(action.metres or action.radians)
    return 0.0 if goal == 0.0 else _motion_seconds(action, min(goal, round(max(0.0, reached), 2)))


@lru_cache(maxsize=4096)
def _motion_seconds(action: NavigationAction, reached: float) -> float:
    motion = Motion(action, PlanarPose(0.0, 0.0, 0.0), 0.0, SIM_MOTION)
    slew = SlewLimiter(SIM_LIMITS)
    sign = math.copysign(1.0, action.radians or action.metres)
    # What falls short of the goal by less than the executor's tolerance was not blocked.
    short = abs(action.metres or action.radians) - reached > 0.01
    gone, now = 0.0, 0.0
    while True:
        place = PlanarPose(0.0, 0.0, sign * gone) if action.radians else PlanarPose(gone, 0.0, 0.0)
        step = motion.update(place, now)
        if step.outcome is not Outcome.RUNNING:
            return now
        velocity = slew.step(step.velocity, CONTROL_S)
        gone += CONTROL_S * (sign * velocity.wz if action.radians else velocity.vx)
        gone = min(gone, reached) if short else gone
        now += CONTROL_S
