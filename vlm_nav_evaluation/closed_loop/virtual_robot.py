"""A robot on virtual time that acts while its answer is still being written.

Production's own navigator, executor and bridge limits drive the kinematic simulator; answers are those of the real
pair with declared times (`timelines.py`). All share one clock, so a motion that begins early, and a question that is
asked in motion, cost and save what they would on the robot, and other work on the machine changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_drafter import Mode
from edge_drafter.link import LinkConfig, LinkState
from edge_drafter.question import Cancelled, Reply
from spec_vlm_nav.executor import Command, Executor, Report
from spec_vlm_nav.messages import OUTCOME_OF, to_numbers
from spec_vlm_nav.motion import MotionConfig, PlanarPose
from spec_vlm_nav.navigation_goal import End, NavigationGoal
from spec_vlm_nav.navigator import Navigator, NavigatorConfig
from spec_vlm_nav.navigator_interfaces import Decision, Execution, Frame, State
from spec_vlm_nav.odometry import OdometrySample
from spec_vlm_nav.parameters import WATCHDOG_S
from spec_vlm_nav.safety import Limits, SlewLimiter, Velocity
from speculation.language.prompts import Vocabulary
from speculation.wire import Jpegs, frames_of
from vlm_nav_evaluation.closed_loop.timelines import AnswerTimeline, Timelines
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import SUCCESS_GAP, Outcome
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

SIM_MOTION = MotionConfig(forward_speed=0.45, turn_speed=0.7)
SIM_LIMITS = Limits(vx=0.5, wz=0.8)
"""Executor and bridge as config/sim.yaml sets them."""
TICK_S = 0.02
"""Executor, bridge and odometry run so often."""
CAMERA_S = 1.0 / 8.0
"""A frame comes so often, as config/sim.yaml has it."""
MOVES = 1e-3
"""A robot that is faster than this moves, m/s or rad/s."""
GOAL = 1
SILENCE_S = LinkConfig.silent_s
ALWAYS_UP = "0/1"
"""The link is dead for no second of every one."""


class VirtualLink:
    """The link as the robot sees it: dead for `dead_s` of every `every_s` seconds, and noticed as silence.

    It is up first, for half of the time between two such gaps.
    """

    why = "nothing received from the verifier"

    def __init__(self, clock: Callable[[], float], dead_s: float, every_s: float) -> None:
        self._clock = clock
        self._up_s, self._every_s = every_s - dead_s, every_s

    @property
    def state(self) -> str:
        dead_for = self._phase % self._every_s - self._up_s
        return str((LinkState.SILENT if dead_for >= SILENCE_S else LinkState.NOMINAL).value)

    def carried_s(self) -> float:
        """Return for how many seconds it has carried messages so far."""
        periods, rest = divmod(self._phase, self._every_s)
        return periods * self._up_s + min(rest, self._up_s) - self._up_s / 2.0

    @property
    def _phase(self) -> float:
        return self._clock() + self._up_s / 2.0


class VirtualQuestion:
    """Answers as a `Question` of `spec_vlm_nav.navigator_interfaces`: tokens come with time."""

    guess = ""

    def __init__(self, timeline: AnswerTimeline, clock: Callable[[], float]) -> None:
        """`clock` stands still while nothing can come."""
        self._timeline, self._clock = timeline, clock
        self._asked = clock()
        self._cancelled = False

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._asked

    @property
    def committed(self) -> str:
        return self._timeline.committed(self._elapsed)

    @property
    def done(self) -> bool:
        return self._cancelled or self._elapsed >= self._timeline.seconds

    def result(self) -> Reply:
        if self._cancelled:
            raise Cancelled("the question was cancelled")
        return Reply(self._timeline.text, self._timeline.stats)

    def cancel(self) -> None:
        self._cancelled = True


@dataclass
class Measured:
    """What an episode is measured by; seconds and metres."""

    moving_s: float = 0.0
    path_m: float = 0.0
    collisions: int = 0
    first_motion_s: list[float] = field(default_factory=list)
    """How long the robot took from the frame to its first motion, for every decision that moved."""
    questions: int = 0
    used_ahead: int = 0
    """Decisions that came of a question about a frame taken in motion."""


class VirtualRobot:
    """Is the clock of one navigator, and its `Decoder` and `RobotInterface` of `spec_vlm_nav.navigator_interfaces`.

    Use and close it in one thread (GL).
    """

    def __init__(
        self,
        scene: Scene,
        timelines: Timelines,
        mode: str,
        rtt_s: float,
        objects: Vocabulary | None,
        dead: str = ALWAYS_UP,
    ) -> None:
        """`dead`: for how many seconds of every how many the link is dead, e.g. 10/30."""
        self.now, self.dead = 0.0, dead
        self.link = VirtualLink(self.clock, *map(float, dead.split("/")))
        self.measured = Measured()
        self.world = World(scene)
        self.mode, self.rtt_s = mode, rtt_s
        self._timelines, self._objects = timelines, objects
        self._executor = Executor(SIM_MOTION, (), WATCHDOG_S, lambda report: None)
        self._slew = SlewLimiter(SIM_LIMITS)
        self._frame: tuple[float, Pose, tuple[float, float]] | None = None
        """Time, place and gait of the newest frame."""
        self._next_frame = 0.0
        self._blocked = False
        self._waits_for_motion: tuple[int, float] | None = None
        self._sent: Decision | None = None
        self._tick()

    def close(self) -> None:
        """Free the GL objects."""
        self.world.close()

    # -- the clock

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass: the robot moves meanwhile."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self._tick()

    def _tick(self) -> None:
        self._executor.tick(self.now)
        wanted = self._executor.velocity
        if wanted == Velocity():
            self._slew.reset()
        velocity = self._slew.step(wanted, TICK_S)
        before = self.world.pose
        blocked = self.world.move(velocity.vx, velocity.vy, velocity.wz, TICK_S)
        self.measured.collisions += blocked and not self._blocked
        self._blocked = blocked
        self.now = round(self.now + TICK_S, 9)
        after = self.world.pose
        self.measured.path_m += math.dist(before[:2], after[:2])
        moves = math.hypot(velocity.vx, velocity.vy) > MOVES or abs(velocity.wz) > MOVES
        self.measured.moving_s += TICK_S * moves
        if moves and self._waits_for_motion is not None:
            self.measured.first_motion_s.append(round(self.now - TICK_S - self._waits_for_motion[1], 4))
            self._waits_for_motion = None
        half = after.yaw / 2.0
        self._executor.on_odometry(
            OdometrySample((after.x, after.y, 0.0), (0.0, 0.0, math.sin(half), math.cos(half)), self.now, self.now)
        )
        if self.now >= self._next_frame:
            self._next_frame += CAMERA_S
            self._frame = self.now, after, self.world.gait

    # -- the decoder

    def objects(self, limit_s: float, mode: str | None = None) -> Vocabulary | None:
        return self._objects

    def ask(self, prompt: str, jpeg: Jpegs, deadline_s: float, mode: str | None = None) -> VirtualQuestion:
        self.measured.questions += 1
        frame = frames_of(jpeg)[-1]
        if mode == Mode.EDGE.value:
            return VirtualQuestion(self._timelines.alone(prompt, frame), self.clock)
        return VirtualQuestion(self._timelines.answer(prompt, frame, self.mode, self.rtt_s), self.link.carried_s)

    # -- the body

    def frame_after(self, moment: float) -> Frame | None:
        # Rendered only now, as it was seen then.
        if self._frame is None or self._frame[0] <= moment:
            return None
        at, pose, seen = self._frame
        here, gait = self.world.pose, self.world.gait
        self.world.set_pose(*pose)
        self.world.set_gait(*seen)
        jpeg = encode_jpeg(self.world.render())
        self.world.set_pose(*here)
        self.world.set_gait(*gait)
        return Frame(jpeg, at, 0.0, None, PlanarPose(*pose))

    def camera_problem(self) -> str:
        return ""

    def place(self) -> PlanarPose:
        return PlanarPose(*self.world.pose)

    def understood(self, instruction: str) -> None:
        """Do nothing: nobody looks at this robot."""

    def asked(self, prompt: str, frame: Frame) -> None:
        """Do nothing: nobody looks at this robot."""

    def act(self, decision: Decision) -> None:
        kind, size, _ = to_numbers(decision.action)
        new = self._sent is None or self._sent.step != decision.step
        if new and decision.frame is not None and decision.action is not None and decision.action.size is not None:
            self._waits_for_motion = (decision.step, decision.frame.arrived)
            self.measured.used_ahead += decision.in_motion
        self._sent = decision
        command = Command(GOAL, decision.step, kind, size, decision.complete, decision.speed_scale)
        self._executor.on_command(command, self.now)

    def execution(self, step: int) -> Execution | None:
        report: Report = self._executor.report(self.now)
        if (report.goal, report.step) != (GOAL, step):
            return None
        outcome = OUTCOME_OF.get(report.outcome)
        return Execution(outcome, report.progress, report.remaining, report.elapsed, report.message)

    def executor_silence(self) -> float:
        return 0.0

    def report(self, state: State, reason: str = "") -> None:
        """Do nothing: nobody looks at this robot."""

    def writing(self, answer: str, guess: str) -> None:
        """Do nothing: nobody looks at this robot."""


@dataclass(kw_only=True)
class ActingEpisode(Measured):
    """A finished episode."""

    behaviour: str
    mode: str
    rtt_ms: float
    seed: int
    success: bool
    outcome: str
    actions: int
    total_s: float
    dead: str = ALWAYS_UP
    """Says for how many seconds of every how many the link was dead, as `acting --dead` does."""

    @property
    def standing_s(self) -> float:
        """Return the seconds in which the robot did not move."""
        return self.total_s - self.moving_s


def run_acting(
    scene: Scene,
    behaviour: str,
    config: NavigatorConfig,
    robot: VirtualRobot,
    max_actions: int = 40,
) -> ActingEpisode:
    """Run one episode from its first look to the end of its goal, and close the robot.

    Raises ValueError for a model that cannot be used.
    """
    try:
        goal = NavigationGoal(f"find the {scene.target.text}")
        navigator = Navigator(goal, robot, robot, robot.clock, robot.sleep, lambda: None, config)
        result = navigator.run(config.time_allowance_s, max_actions)
        sighting = observe(robot.world)[scene.target_index]
        stopped = result.end is End.STOPPED
        near = stopped and sighting.visible and sighting.distance <= SUCCESS_GAP
        if stopped:
            outcome = Outcome.FOUND.value if near else Outcome.STOPPED_AWAY.value
        else:
            # An end by NOT HERE is one outcome, whatever its reasons are.
            outcome = result.end.value if result.end is End.NOT_FOUND else result.message
        return ActingEpisode(
            behaviour=behaviour, mode=robot.mode, rtt_ms=1e3 * robot.rtt_s, seed=scene.seed, success=near,
            outcome=outcome, actions=result.actions, total_s=robot.now, dead=robot.dead, **vars(robot.measured),
        )  # fmt: skip
    finally:
        robot.close()
