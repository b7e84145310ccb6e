"""One episode in the kinematic simulator with a clock: the answer's own time, then the motion's.

While an answer is decoded the robot stands, so decoding methods that give the same tokens give the same walk and differ
in time alone. Motion takes what the robot's own control loop takes on an ideal base.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edge_drafter import DecodingStats, DraftingConfig, Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.settings import EdgeConfig
from simulation.camera import Image
from simulation.dataset import encode_jpeg
from simulation.episode import oracle_policy, run_episode
from simulation.geometry import Pose
from simulation.world import World
from spec_vlm_nav.motion import Motion, MotionConfig, Outcome, PlanarPose, wrap
from spec_vlm_nav.navigator import SETTLE_S
from spec_vlm_nav.safety import Limits, SlewLimiter
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.prompts import NavigationAction, ResponseOrder, compose, parse_answer
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import Jpegs, jpeg_of

ORACLE, TARGET, DRAFT = "oracle", "target", "draft"
MODES = (TARGET, DRAFT, *(mode.value for mode in Mode))
"""Answering policies; `target` and `draft` run in this process, without link and drafter: for success, not for time."""
POLICIES = (ORACLE, *MODES)
SIM_MOTION = MotionConfig(forward_speed=0.45, turn_speed=0.7)
SIM_LIMITS = Limits(vx=0.5, wz=0.8)
"""Executor and bridge as config/sim.yaml sets them."""
CONTROL_S = 0.05
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
    order: ResponseOrder = ResponseOrder.REASON_FIRST
    guide: bool = False
    """How models are asked, as in `speculation.prompts.compose`."""


@dataclass(frozen=True)
class EpisodeKey:
    """Which episode."""

    difficulty: str
    seed: int
    policy: str
    rtt_ms: float | None
    """A round trip on top of the profile's own, ms; None for a policy without a link."""


@dataclass(frozen=True)
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

    @property
    def key(self) -> EpisodeKey:
        """Which episode this is."""
        return EpisodeKey(self.difficulty, self.seed, self.policy, self.rtt_ms)

    @property
    def total_s(self) -> float | None:
        """From the first look to the end."""
        return None if self.standing_s is None else self.standing_s + self.moving_s


Answerer = Callable[[str, Jpegs], "tuple[str, DecodingStats | None]"]
"""Prompt and frames in; the answer's text and what it took out, None where it was not decoded by the edge."""


class Answerers:
    """The models and links of one process, opened when first asked for. Close it in the end."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sessions: dict[str, VlmSession] = {}
        self._edge: EdgeDecoder | None = None
        self._rtt_ms: float | None = None
        self._warm: set[str] = set()

    def of(self, policy: str, rtt_ms: float | None) -> Answerer:
        """Return what answers as `policy` over a link of this round trip. Raises ValueError for models that fail.

        Decoding raises VerifierLost or AnswerLate.
        """
        config = self._setting.edge
        if not is_timed(policy):
            if policy not in self._sessions:
                folder = self._setting.target_model if policy == TARGET else config.draft_model
                self._sessions[policy] = VlmSession(load_vlm(folder, config.draft), config.capacity)
            session = self._sessions[policy]
            return lambda prompt, jpeg: (session.answer(prompt, jpeg, config.decoding.max_tokens), None)
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
    scene = scene_of(key.seed, key.difficulty, setting.object_name)
    instruction = f"find the {scene.target.text}"
    answers: list[tuple[str, DecodingStats | None]] = []
    if key.policy == ORACLE:
        policy = oracle_policy(scene)
    else:
        ask = answerers.of(key.policy, key.rtt_ms)
        done: list[NavigationAction] = []
        seen = deque[bytes](maxlen=setting.edge.frames)

        def policy(frame: Image, _: World) -> NavigationAction | None:
            seen.append(encode_jpeg(frame))
            answers.append(ask(compose(instruction, done, setting.order, setting.guide), jpeg_of(seen)))
            # The real robot would stand, look again, see the same and give up: the answer is greedy.
            action = parse_answer(answers[-1][0]).action
            if action is not None:
                done.append(action)
            return action

    result = run_episode(scene, policy, setting.max_actions)
    stats = [entry for _, entry in answers if entry is not None]
    answers_s = tuple(entry.total_s for entry in stats)
    looks = len(result.actions) if key.policy == ORACLE else len(answers)
    legs = zip(result.actions, result.poses, result.poses[1:], strict=False)
    return Episode(
        **vars(key),
        target=scene.target.text,
        object_class=scene.target.object_class,
        outcome=result.outcome.value,
        success=result.success,
        actions=tuple(action.text for action in result.actions),
        path_m=round(result.path_length, 4),
        collisions=result.collisions,
        gap_m=round(result.final_gap, 4),
        moving_s=round(sum(motion_seconds(action, progress(action, a, b)) for action, a, b in legs), 4),
        standing_s=round(sum(answers_s) + looks * SETTLE_S, 6) if is_timed(key.policy) else None,
        answers_s=tuple(round(seconds, 6) for seconds in answers_s),
        **{name: sum(getattr(entry, name) for entry in stats) for name in COUNTS},
    )


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
