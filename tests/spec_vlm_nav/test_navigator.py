"""Whole goals on a clock of the test's own, with a scripted model and a scripted robot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_drafter.question import AnswerLate, Cancelled, Reply, VerifierLost, VerifierRefused
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.action_publisher import HOLD_S, POLL_S
from spec_vlm_nav.link_monitor import LinkLimits
from spec_vlm_nav.motion import Outcome, PlanarPose
from spec_vlm_nav.navigation_goal import HOLD_UNCONFIRMED, End, GoalResult, NavigationGoal
from spec_vlm_nav.navigator import SETTLE_S, Navigator, NavigatorConfig
from spec_vlm_nav.navigator_interfaces import Decision, Execution, Frame, State
from speculation.language.prompts import (
    NOT_HERE,
    STOP,
    ActionKind,
    ActionSize,
    Blocked,
    Guidance,
    NavigationAction,
    Past,
    ResponseOrder,
    Vocabulary,
    committed_action,
    compose,
    format_answer,
    parse_answer,
)
from speculation.language.thinking import MAX_SHOWN_CHARS
from speculation.wire import Jpegs, frames_of

CONFIG = NavigatorConfig(guide=Guidance.NEVER, act_early=False, look_ahead=False)
WORDS = Vocabulary(("silver",), ("bottle",))
SEARCHES = Vocabulary(("silver",), ("bottle",), form=2)
LEFT = "I see nothing.\nAction: turn left large"
AHEAD = "Ahead.\nAction: forward small"
FAR = "Far ahead.\nAction: forward large"
LEFT_LARGE = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
DONE = format_answer("The silver bottle is right ahead.", STOP)
GONE = format_answer("I have looked everywhere.", NOT_HERE)


@dataclass
class Written:
    """A question whose answer is written a few characters at a time; it satisfies `body.Question`."""

    world: World
    answer: str | Exception
    alone: bool
    began: float
    cancelled: bool = False
    cancelled_at: float = math.inf
    published_before: int = 0
    """Decisions that were published when it was cancelled."""
    lasts: float = 0.0
    """Seconds; 0: as the world's answers do."""

    @property
    def done(self) -> bool:
        return self.cancelled or self.world.now >= self.began + (self.lasts or self.world.answer_s) - 1e-9

    @property
    def committed(self) -> str:
        text = self.answer if isinstance(self.answer, str) else self.world.before_failure
        since = (self.world.now - self.began) / (self.lasts or self.world.answer_s)
        return text if self.done else text[: max(0, int(since * len(text)))]

    @property
    def guess(self) -> str:
        return "" if self.done else "perhaps"

    def result(self) -> Reply:
        assert self.done, "nobody may wait for an answer without looking at the clock"
        if self.cancelled:
            raise Cancelled("cancelled")
        if isinstance(self.answer, Exception):
            raise self.answer
        return Reply(self.answer, DecodingStats(mode="edge" if self.alone else "fsd"))

    def cancel(self) -> None:
        if not self.cancelled:
            self.published_before = len(self.world.decisions)
        self.cancelled, self.cancelled_at = True, self.world.now


@dataclass
class Line:
    """The link, as `body.Link`."""

    state: str = "nominal"
    why: str = ""


@dataclass
class Walk:
    """One motion of the scripted robot."""

    action: NavigationAction
    began: float
    start: PlanarPose
    scale: float
    until: float = math.inf
    """When something took over."""


SPEED, TURN = 0.4, 0.5


@dataclass
class World:
    """A robot whose camera and executor work, unless a test says otherwise, and a model that reads from a list."""

    answers: list[str | Exception]
    now: float = 50.0
    frame_period: float = 0.125
    camera_dies_at: float = math.inf
    camera_back_at: float = math.inf
    problem: str = ""
    """Of a camera that is dead."""
    problems: int = 0
    """How often somebody asked for it."""
    outcome: Callable[[int], Execution | None] | None = None
    """In place of a robot that walks."""
    answer_s: float = 0.5
    slow: dict[int, float] = field(default_factory=dict)
    """Seconds of the n-th answer, where it takes longer than the others."""
    before_failure: str = ""
    decisions: list[Decision] = field(default_factory=list)
    acted_at: list[float] = field(default_factory=list)
    reports: list[tuple[State, str]] = field(default_factory=list)
    asked_at: list[tuple[float, float]] = field(default_factory=list)
    questions: list[Written] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    sent: list[Jpegs] = field(default_factory=list)
    views: int = 1
    """Frames that a question may hold."""
    told: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    instruction: str = "find the silver bottle"
    frames: list[Frame] = field(default_factory=list)
    written: list[tuple[str, str]] = field(default_factory=list)
    known: list[Vocabulary | Exception | None] = field(default_factory=lambda: [None])
    config: NavigatorConfig = CONFIG
    end_at: float = math.inf
    end: End = End.CANCELLED
    silence: float = 0.0
    link: Line | None = None
    outages: tuple[tuple[float, float], ...] = ()
    alone_answers: list[str | Exception] = field(default_factory=list)
    slip: float = 0.0
    """Metres that the robot slides sideways at the end of each motion, ..."""
    slip_after: float = 0.0
    """... or so many seconds later."""
    short: float = 1.0
    """Share of each motion that odometry shows at its end."""
    takes_holds: bool = True
    walks: dict[int, Walk] = field(default_factory=dict)
    pose: PlanarPose = field(default_factory=lambda: PlanarPose(0.0, 0.0, 0.0))

    # the decoder

    def objects(self, limit_s: float, *, mode: str | None = None) -> Vocabulary | None:
        known = self.known.pop(0) if len(self.known) > 1 else self.known[0]
        if isinstance(known, Exception):
            raise known
        return known

    def ask(self, prompt: str, jpeg: Jpegs, deadline_s: float, mode: str | None = None) -> Written:
        self.asked_at.append((self.now, deadline_s))
        self.sent.append(jpeg)
        self.prompts.append(prompt)
        answers = self.alone_answers if mode == "edge" else self.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        for question in self.questions:
            question.cancelled = question.cancelled or not question.done
        self.questions.append(Written(self, answer, mode == "edge", self.now))
        self.questions[-1].lasts = self.slow.get(len(self.questions), 0.0)
        return self.questions[-1]

    # the body

    def frame_after(self, moment: float) -> Frame | None:
        arrived = math.floor(self.now / self.frame_period) * self.frame_period
        dead = self.camera_dies_at <= arrived < self.camera_back_at
        return Frame(b"%.3f" % arrived, arrived, 0.0, None, self.place()) if arrived > moment and not dead else None

    def camera_problem(self) -> str:
        self.problems += 1
        return self.problem and f"{self.problem} ({self.problems})"

    def place(self) -> PlanarPose | None:
        return self._pose(next(reversed(self.walks.values()))) if self.walks else self.pose

    def understood(self, instruction: str) -> None:
        self.shown.append(instruction)

    def asked(self, prompt: str, frame: Frame) -> None:
        self.told.append(prompt)
        self.frames.append(frame)

    def act(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.acted_at.append(self.now)
        before = next(reversed(self.walks.values())) if self.walks else None
        action = decision.action
        if before is not None and decision.step in self.walks:
            assert action is not None
            self.walks[decision.step].action = action
            return
        start = self.pose
        if before is not None:
            before.until = min(before.until, self.now)
            start = self._pose(before)
        if action is not None and action.size is not None:
            self.walks[decision.step] = Walk(action, self.now, start, decision.speed_scale)

    def execution(self, step: int) -> Execution | None:
        if self.outcome is not None:
            return self.outcome(step)
        walk = self.walks.get(step)
        if walk is None:
            sent = any(decision.step == step for decision in self.decisions)
            return Execution(Outcome.DONE) if sent and self.takes_holds else None
        amount, moved = walk.action.metres or abs(walk.action.radians), self._moved(walk)
        outcome = Outcome.DONE if moved >= amount - 0.005 else Outcome.RUNNING if walk.until >= self.now else None
        shown = moved * self.short if outcome is Outcome.DONE else moved
        return Execution(outcome, shown, max(0.0, amount - moved), self.now - walk.began)

    def executor_silence(self) -> float:
        return self.silence

    def report(self, state: State, reason: str = "") -> None:
        if not self.reports or self.reports[-1] != (state, reason):
            self.reports.append((state, reason))

    def writing(self, answer: str, guess: str) -> None:
        self.written.append((answer, guess))

    # the clock

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.link is not None:
            away = any(start <= self.now < end for start, end in self.outages)
            self.link.state = "silent" if away else "nominal"
            self.link.why = f"nothing received for {self.now:.1f} s" if away else ""

    def over(self) -> End | None:
        return self.end if self.now >= self.end_at else None

    def run(
        self, time_allowance_s: float = 0.0, max_actions: int = 0, dry: bool = False, done: Sequence[Past] = ()
    ) -> GoalResult:
        goal = NavigationGoal(self.instruction, done, dry, self.views)
        navigator = Navigator(goal, self, self, lambda: self.now, self.sleep, self.over, self.config)
        return navigator.run(time_allowance_s, max_actions)

    def _moved(self, walk: Walk) -> float:
        pace = (TURN if walk.action.radians else SPEED) * walk.scale
        return min(pace * (min(self.now, walk.until) - walk.began), walk.action.metres or abs(walk.action.radians))

    def _pose(self, walk: Walk) -> PlanarPose:
        moved, start = self._moved(walk), walk.start
        amount = walk.action.metres or abs(walk.action.radians)
        pace = (TURN if walk.action.radians else SPEED) * walk.scale
        ended_at = walk.began + amount / pace + self.slip_after
        slipped = self.slip if moved >= amount - 0.005 and self.now >= ended_at else 0.0
        if walk.action.radians:
            return PlanarPose(start.x, start.y + slipped, start.yaw + math.copysign(moved, walk.action.radians))
        return PlanarPose(
            start.x + moved * math.cos(start.yaw), start.y + moved * math.sin(start.yaw) + slipped, start.yaw
        )

    @property
    def acts(self) -> list[tuple[int, NavigationAction | None]]:
        return [(decision.step, decision.action) for decision in self.decisions if decision.complete]

    @property
    def texts(self) -> list[str]:
        return ["hold" if action is None else action.text for _, action in self.acts]

    @property
    def published(self) -> list[tuple[int, str, bool]]:
        return [
            (decision.step, "hold" if decision.action is None else decision.action.text, decision.complete)
            for decision in self.decisions
        ]


def test_every_step_looks_at_a_frame_taken_after_the_robot_came_to_rest() -> None:
    world = World([LEFT, LEFT, DONE])
    world.run()
    turn_s = LEFT_LARGE.radians / TURN
    for began, (asked, _) in zip(world.acted_at[:2], world.asked_at[1:], strict=True):
        assert asked >= began + turn_s + SETTLE_S - 0.02


def test_a_question_holds_the_frames_of_the_last_views() -> None:
    world = World([LEFT, AHEAD, LEFT, LEFT, DONE], views=3)
    world.run()
    newest = [frame.jpeg for frame in world.frames]
    assert len(set(newest)) == 5
    assert [frames_of(each) for each in world.sent] == [tuple(newest[max(0, last - 2) : last + 1]) for last in range(5)]
    assert isinstance(world.sent[0], bytes), "one frame is no list"


@pytest.mark.parametrize(
    ("link", "outages", "why"),
    [(None, (), "connection refused"), (Line(), ((52.0, math.inf),), "nothing received for")],
    ids=["each question fails", "the link is silent"],
)
def test_a_goal_ends_when_its_verifier_has_been_away_for_long(
    link: Line | None, outages: tuple[tuple[float, float], ...], why: str
) -> None:
    """What the draft model may decide alone comes on top, and counts from the last answer."""
    limits = LinkLimits(degraded_s=5.0, link_lost_s=20.0)
    world = World([VerifierLost("connection refused")] if link is None else [LEFT], link=link, outages=outages)
    world.config, world.alone_answers = NavigatorConfig(guide=Guidance.NEVER, link=limits), [LEFT]
    result = world.run(time_allowance_s=300.0)
    assert result.end is End.LINK_LOST and why in result.message and "waited 20 s for it" in result.message
    assert 20.0 <= result.elapsed_s <= 20.0 + 5.0 + 6.0 and result.held


REFUSED = VerifierRefused("another tokenizer")


@pytest.mark.parametrize(
    "world",
    [World([LEFT, REFUSED]), World([LEFT], known=[REFUSED]), World([LEFT], link=Line("refused", "another tokenizer"))],
    ids=["its answer", "its list of objects", "its link"],
)
def test_a_verifier_that_refuses_ends_the_goal_at_once_with_its_words(world: World) -> None:
    result = world.run()
    assert (result.end, result.message) == (End.LINK_LOST, "no verifier: another tokenizer")
    assert world.texts[-1] == "hold" and result.elapsed_s < 10.0


@pytest.mark.parametrize(
    ("instruction", "known", "words"),
    [
        ("do not go to the silver bottle", [WORDS], "says what not to find"),
        ("find the silver bottle", [VerifierLost("not yet"), Vocabulary(("red",), ("ball",))], "objects: ball"),
    ],
    ids=["denied", "unknown, as the verifier says when it comes"],
)
def test_what_the_model_cannot_look_for_ends_the_goal_before_anything_is_asked(
    instruction: str, known: list[Vocabulary | Exception | None], words: str
) -> None:
    world = World([LEFT], known=known, instruction=instruction)
    result = world.run()
    assert result.end is End.BAD_INSTRUCTION and words in result.message
    assert world.prompts == world.shown == [] and set(world.texts) == {"hold"}


def test_a_dead_camera_holds_and_a_living_one_goes_on_and_one_that_stays_dead_is_named_with_its_reason() -> None:
    world = World([LEFT, DONE], camera_dies_at=50.6, camera_back_at=55.0)
    assert world.run().end is End.STOPPED
    assert world.texts == ["turn left large", "hold", "stop"]
    assert any("camera" in reason for _, reason in world.reports)
    dead = World([LEFT], camera_dies_at=0.0, problem="the frames are cut off")
    result = dead.run(time_allowance_s=8.0)
    assert result.end is End.STALE_CAMERA
    assert "no camera frame for 1 s: the frames are cut off" in result.message
    assert 3 <= dead.problems <= 8 and len(dead.decisions) <= 9


def every(count: int, outcome: Outcome, otherwise: Outcome, words: str = "") -> Callable[[int], Execution]:
    """Return a robot of whose motions each `count`-th ends as `outcome`, and all others as `otherwise`."""
    return lambda step: Execution(otherwise if step % count else outcome, message=words and f"{words} {step}")


@pytest.mark.parametrize(
    ("answers", "outcome", "end", "words"),
    [
        ([LEFT] * 13, every(1, Outcome.BLOCKED, Outcome.DONE), End.OBSTACLE, ""),
        ([LEFT] * 12 + [DONE], every(3, Outcome.DONE, Outcome.BLOCKED), End.STOPPED, ""),
        ([LEFT] * 40, every(2, Outcome.BLOCKED, Outcome.DONE), End.OBSTACLE, "10 actions were blocked and none led"),
        (([LEFT] * 9 + [AHEAD]) * 4 + [DONE], every(2, Outcome.BLOCKED, Outcome.DONE), End.STOPPED, ""),
        ([LEFT], every(1, Outcome.FAULT, Outcome.DONE, "nav2"), End.ROBOT_FAULT, "3 in a row failed; the last: nav2 4"),
        ([LEFT] * 12 + [DONE], every(3, Outcome.DONE, Outcome.FAULT), End.STOPPED, ""),
        ([LEFT], lambda step: None, End.ROBOT_FAULT, "did not end within 15 s"),
        (["nonsense"], every(1, Outcome.DONE, Outcome.DONE), End.NO_VALID_ACTION, " in a row; the last: "),
    ],
    ids=["blocked", "a free move", "stuck", "a way ahead", "faults", "a sound move", "never ends", "no actions"],
)
def test_a_robot_that_cannot_go_on_ends_the_goal_and_one_that_gets_ahead_does_not(
    answers: list[str | Exception], outcome: Callable[[int], Execution | None], end: End, words: str
) -> None:
    world = World(answers, outcome=outcome)
    result = world.run(time_allowance_s=300.0)
    assert result.end is end and words in result.message
    assert end is End.STOPPED or world.texts[-1] == "hold"


def test_a_goal_goes_on_when_the_executor_is_back() -> None:
    world = World([LEFT, DONE], silence=2.0)
    back = world.now + 30.0

    def execution(step: int) -> Execution | None:
        world.silence = 2.0 if world.now < back else 0.0
        return None if world.now < back else Execution(Outcome.DONE, 0.3)

    world.outcome = execution
    assert world.run().end is End.STOPPED and world.now > back


@pytest.mark.parametrize("taken_after", [0.3, math.inf])
def test_a_stop_that_ends_a_motion_under_way_is_waited_for(taken_after: float) -> None:
    """The answer begins with a motion and ends in a stop, which a message that was lost must not turn into success."""
    answer = f"Action: forward large\n{'So it goes on. ' * 4}\nAction: stop"
    world = World([answer], config=EARLY)

    def execution(step: int) -> Execution | None:
        stop = next((at for at, each in zip(world.acted_at, world.decisions, strict=True) if each.action == STOP), None)
        if stop is None or world.decisions[-1].step != step:
            return None if stop is not None else Execution(Outcome.RUNNING)
        return Execution(Outcome.DONE) if world.now >= stop + taken_after else None

    world.outcome = execution
    result = world.run()
    assert any(text == "forward large" for _, text, complete in world.published if not complete)
    assert (result.end, world.texts[-1]) == (End.STOPPED, "stop")
    assert result.held == math.isfinite(taken_after) == (not result.message.endswith(HOLD_UNCONFIRMED))
    assert world.now >= world.acted_at[-1] + min(taken_after, HOLD_S)


def test_limits_of_time_and_actions_also_bound_each_step() -> None:
    slow = World([LEFT])
    assert slow.run(time_allowance_s=7.0).end is End.TIMEOUT
    assert all(deadline <= 50.0 + 7.0 - asked + 0.051 for asked, deadline in slow.asked_at)
    short = World([LEFT]).run(max_actions=3)
    assert (short.actions, short.end) == (3, End.OUT_OF_ACTIONS)
    assert World([AnswerLate("30 s"), DONE]).run().end is End.STOPPED


def test_the_hold_that_ends_a_goal_goes_out_before_its_question_is_dropped() -> None:
    before = World([LEFT])
    before.run(max_actions=1)
    world = World([LEFT], end_at=before.asked_at[0][0] + 0.2)
    assert world.run().end is End.CANCELLED
    assert world.questions[-1].cancelled and world.decisions[-1].action is None
    assert world.questions[-1].published_before == len(world.decisions)


def test_each_prompt_lists_what_odometry_measured_and_nothing_else() -> None:
    turned = LEFT_LARGE.radians
    endings = {
        0: Execution(Outcome.DONE, turned),
        2: Execution(Outcome.BLOCKED, 0.6 * turned, message="blocked"),
        3: Execution(None, 0.1 * turned, message="odometry went silent"),
        4: Execution(Outcome.DONE),
        5: Execution(Outcome.TIMEOUT, 0.23),
    }
    world = World([LEFT, "nonsense", LEFT, LEFT, FAR, DONE], outcome=lambda step: endings[step])
    assert world.run().end is End.STOPPED
    turn = "turn left large"
    assert world.texts == [turn, "hold", turn, turn, "hold", "forward large", "stop"]
    find, left = "find the silver bottle", "find the silver bottle\nDone: turn left large"
    # The second turn was blocked half-way, the third hardly began, and of the walk a third was made.
    both = f"{left}, turn left medium"
    assert world.prompts == [find, left, left, both, both, f"{both}, forward small"]
    assert world.told == world.prompts
    again = World([DONE], now=world.now)
    again.run()
    assert again.prompts == [find], "another goal begins anew"
    resumed = World([DONE])
    resumed.run(done=[LEFT_LARGE])
    assert resumed.prompts == [left], "but one that is sent again goes on"


def test_the_guide_is_decided_by_the_model_that_answers_when_it_is_asked() -> None:
    """A goal comes before the verifier; then a target that takes any instruction is replaced by one with a list."""
    lost = VerifierLost("no verifier answers")
    world = World([LEFT, DONE], known=[lost, None, WORDS], config=NavigatorConfig())
    assert world.run().end is End.STOPPED
    assert world.texts == ["hold", "turn left large", "stop"]
    assert (State.HOLDING, "verifier lost: no verifier answers") in world.reports
    find = "find the silver bottle"
    assert world.prompts == [compose(find, guide=True), compose(find, [LEFT_LARGE])]
    assert world.shown == [find], "of a model without a list nothing is, of one with a list the same words are"


def test_a_dry_run_decides_and_never_waits_for_legs() -> None:
    world = World([LEFT, DONE], outcome=lambda step: None)
    assert world.run(dry=True).end is End.STOPPED
    assert len(set(world.prompts)) == 1, "nobody walked, so nothing was done"


# -- acting as soon as it is known

EARLY = NavigatorConfig(guide=Guidance.NEVER, order=ResponseOrder.ACTION_FIRST, look_ahead=False)
REASONS = "I see the silver bottle, it stands on the left of the red chair."


def first(action: NavigationAction) -> str:
    return format_answer(REASONS, action, ResponseOrder.ACTION_FIRST)


LEFT_SMALL = NavigationAction(ActionKind.TURN_LEFT, ActionSize.SMALL)


def test_an_action_begins_small_with_its_kind_is_extended_with_its_size_and_completed_with_the_answer() -> None:
    world = World([first(LEFT_LARGE), DONE], config=EARLY, answer_s=4.0)
    assert world.run().end is End.STOPPED
    assert world.published == [
        (0, "turn left small", False), (0, "turn left large", False), (0, "turn left large", True), (1, "stop", True),
    ]  # fmt: skip
    kind_s = world.acted_at[0] - world.asked_at[0][0]
    assert kind_s < 1.5 < 4.0 <= world.acted_at[2] - world.asked_at[0][0]
    assert world.decisions[2].action_s == pytest.approx(kind_s)
    assert [decision.reply is not None for decision in world.decisions] == [False, False, True, True]
    assert world.prompts[1].endswith("Done: turn left large\nAction first")


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        ("Action: turn left, because the bottle stands there.", [(1, "hold", True), (2, "hold", True)]),
        (f"Action: turn left large\n{REASONS} Action: stop", [(1, "hold", True), (2, "stop", True)]),
        (f"Action: turn left large\n{REASONS} Action: stop there", [(1, "hold", True), (2, "hold", True)]),
    ],
)
def test_an_answer_that_takes_its_action_back_holds_the_robot_at_once(
    answer: str, after: list[tuple[int, str, bool]]
) -> None:
    world = World([answer, DONE], config=EARLY, answer_s=4.0)
    assert world.run().end is End.STOPPED
    begun = [entry for entry in world.published if entry[0] == 0]
    assert begun[0] == (0, "turn left small", False) and not any(complete for _, _, complete in begun)
    assert world.published[len(begun) : len(begun) + 2] == after
    assert world.acted_at[len(begun)] < world.asked_at[0][0] + 4.0, "not with the whole answer"


THOUGHT = "<think>\nAction: forward large would hit the chair.\nAction: stop is too early. So left.\n</think>\n\n"


@pytest.mark.parametrize("kept", [THOUGHT, THOUGHT.replace("So", "So " + "on and on " * 400)])
def test_no_action_is_begun_or_taken_out_of_thinking(kept: str) -> None:
    """What the model thinks names other actions; the robot shows it, bounded, and does what stands behind it."""
    world = World([kept + first(LEFT_LARGE), kept + first(STOP)], config=EARLY, answer_s=8.0)
    result = world.run()
    assert result.end is End.STOPPED and world.texts == ["turn left large", "stop"]
    assert {text for _, text, _ in world.published} <= {"turn left small", "turn left large", "stop"}
    assert not world.decisions[0].complete, "and it still begins before the answer's end"
    asked, acted = world.asked_at[0][0], world.acted_at[0]
    assert acted - asked >= 8.0 * len(kept) / len(kept + first(LEFT_LARGE))
    assert any("forward large" in text for text, _ in world.written)
    assert max(len(text) for text, _ in world.written) < MAX_SHOWN_CHARS + 200


@pytest.mark.parametrize("failure", [VerifierLost("gone"), AnswerLate("30 s"), ValueError("no image")])
def test_an_answer_that_ends_without_its_end_holds_what_it_began(failure: Exception) -> None:
    world = World([failure, DONE], config=EARLY, before_failure="Action: forward large\nIt", answer_s=1.0)
    assert world.run().end is End.STOPPED
    assert [text for _, text, _ in world.published][-2:] == ["hold", "stop"]
    assert "forward" in world.published[0][1]
    done = world.walks[0]
    assert done.until < math.inf, "the robot was stopped"
    assert "Done: forward small" in world.prompts[1], "what it walked until then"


# -- looking ahead

AHEAD_CONFIG = NavigatorConfig(guide=Guidance.NEVER, order=ResponseOrder.ACTION_FIRST)


def test_the_next_question_goes_out_in_motion_and_its_action_follows_without_a_rest() -> None:
    answers: list[str | Exception] = [first(LEFT_LARGE), first(LEFT_LARGE), first(LEFT_LARGE), DONE]
    world = World(answers, config=AHEAD_CONFIG)
    assert world.run().end is End.STOPPED
    assert [decision.in_motion for decision in world.decisions if decision.complete] == [False, True, True, True]
    assert world.prompts[1].endswith("Done: turn left large\nAction first"), "the action under way counts as done"
    still = World([*[first(LEFT_LARGE)] * 3, DONE], config=EARLY)
    still.run()
    assert world.now < still.now - 3 * SETTLE_S
    turns = [at for at, decision in zip(world.acted_at, world.decisions, strict=True) if decision.complete]
    assert all(walk.until - walk.began < LEFT_LARGE.radians / TURN + 0.3 for walk in list(world.walks.values())[:-1])
    assert turns == sorted(turns)


def test_a_look_ahead_sees_what_the_robot_will_see() -> None:
    """The frame is taken within the limit of the motion's end."""
    world = World([first(LEFT_LARGE), DONE], config=AHEAD_CONFIG, answer_s=1.5)
    world.run()
    seen = world.frames[1].place
    assert seen is not None
    end = LEFT_LARGE.radians
    assert 0.0 < end - seen.yaw <= math.radians(AHEAD_CONFIG.look_ahead_deg)


@pytest.mark.parametrize(("slip_after", "slow"), [(0.0, {}), (0.1, {2: 8.0})], ids=["before", "while it is written"])
def test_a_decision_is_dropped_where_the_view_changed_by_more_than_the_limit(
    slip_after: float, slow: dict[int, float]
) -> None:
    answers: list[str | Exception] = [first(LEFT_LARGE), first(LEFT_SMALL), DONE]
    world = World(answers, config=AHEAD_CONFIG, slip=0.4, slip_after=slip_after, slow=slow)
    assert world.run(time_allowance_s=60.0).end is End.STOPPED
    assert len(world.questions) == 3 and world.questions[1].cancelled
    assert not slow or world.questions[1].cancelled_at > world.walks[0].began + 1.6
    assert world.texts == ["turn left large", "stop"], "what was asked in motion is never carried out"
    assert not world.decisions[-1].in_motion


@pytest.mark.parametrize("outcome", [*Outcome, None][2:])
def test_a_decision_is_dropped_where_the_motion_ended_otherwise(outcome: Outcome | None) -> None:
    world = World([first(LEFT_LARGE), first(LEFT_SMALL), DONE], config=AHEAD_CONFIG, answer_s=2.0)

    def execution(step: int) -> Execution:
        walked = world.now - world.walks[0].began if world.walks else 0.0
        if step > 0 or walked > 3.0:
            return Execution(outcome if step == 0 else Outcome.DONE, 0.7, message="why")
        return Execution(Outcome.RUNNING, max(0.01, walked * TURN), 0.1, max(0.02, walked))

    world.outcome = execution
    assert world.run().end is End.STOPPED
    assert world.questions[1].cancelled and "turn left small" not in world.texts


def test_nothing_is_asked_ahead_of_the_last_action_that_is_allowed() -> None:
    world = World([first(LEFT_LARGE)], config=AHEAD_CONFIG)
    assert world.run(max_actions=2).end is End.OUT_OF_ACTIONS
    assert len(world.questions) == 2


# -- a search that is remembered (prompts of form 2)


def searching(answers: list[str | Exception], **more: Any) -> World:
    return World(answers, known=[SEARCHES], **more)


def test_a_model_of_form_2_gets_what_was_searched_as_seen_from_where_each_frame_was_taken() -> None:
    door = format_answer("There is a doorway straight ahead, about 2 m away.", LEFT_LARGE)
    world = searching(
        [door, LEFT, AHEAD, "The silver bottle is on the right, about 1 m away.\nAction: forward small", DONE]
    )
    assert world.run().end is End.STOPPED
    find, right = "find the silver bottle", "Doors: right 2 m"
    assert [prompt.split("\n") for prompt in world.prompts] == [
        [find, "Seen: here 1/8"],
        [find, "Done: turn left large", "Seen: here 2/8", "Doors: ahead right 2 m"],
        [find, "Done: turn left large x2", "Seen: here 3/8", right],
        [find, "Done: turn left large x2, forward small", "Seen: here 3/8", right],
        [
            find,
            "Done: turn left large x2, forward small x2",
            "Seen: here 3/8",
            right,
            "Last seen: ahead right 1 m",
        ],
    ]
    again = searching([DONE], now=world.now)
    again.run()
    assert again.prompts == [f"{find}\nSeen: here 1/8"], "another goal searches anew"


@pytest.mark.parametrize(
    ("known", "done"),
    [(SEARCHES, "turn left large, forward large blocked"), (WORDS, "turn left large"), (None, "turn left large")],
)
def test_a_goal_that_is_sent_again_goes_on_with_what_was_blocked(known: Vocabulary | None, done: str) -> None:
    world = World([DONE], known=[known])
    before = (LEFT_LARGE, Blocked(NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)))
    world.run(done=before)
    assert world.prompts[0].split("\n")[1] == f"Done: {done}"


def test_a_model_of_form_1_cannot_end_a_search_that_it_never_learned() -> None:
    world = World([GONE, LEFT, DONE], known=[WORDS])
    assert world.run().end is End.STOPPED
    assert world.texts == ["hold", "turn left large", "stop"]
    assert any("never learned to search" in why for _, why in world.reports)


def claimed(metres: str, action: str, where: str = "straight ahead") -> str:
    return f"The silver bottle is {where}, about {metres} m away.\nAction: {action}"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([claimed("2", "forward large"), claimed("1.5", "forward medium"), claimed("0.5", "stop")], ""),
        ([claimed("1", "forward large")], "said to be at 4 places too far apart to be one"),
        ([claimed("1", "forward large"), FAR] * 9, "said to be at 4 places too far apart to be one"),
        ([claimed("3", "stop")], "a stop 3.3 m from where the object is"),
        ([LEFT, DONE], "a stop and no answer gave a place where the object is"),
    ],
)
def test_answers_that_odometry_contradicts_end_the_goal_without_success(
    answers: list[str | Exception], why: str
) -> None:
    world = searching(answers, link=Line())
    result = world.run()
    assert result.end is (End.CONTRADICTED if why else End.STOPPED)
    assert why in result.message and result.held and (not why or world.texts[-1] == "hold")
    walked = sum(action.metres for _, action in world.acts if action is not None)
    assert walked <= 4.6, "a metre ahead, for many metres"


@pytest.mark.parametrize(
    ("known", "link", "dry"), [(WORDS, Line(), False), (SEARCHES, None, False), (SEARCHES, Line(), True)]
)
def test_a_model_that_never_learned_places_a_draft_model_and_a_dry_run_are_not_held_to_them(
    known: Vocabulary, link: Line | None, dry: bool
) -> None:
    world = World([claimed("1", "forward large")] * 8 + [LEFT, DONE], known=[known], link=link)
    assert world.run(dry=dry).end is End.STOPPED


# -- a lost link


def lossy(*outages: tuple[float, float], **more: Any) -> World:
    config = more.pop("config", NavigatorConfig(guide=Guidance.NEVER, look_ahead=False))
    return World(more.pop("answers", [LEFT]), link=Line(), outages=outages, config=config, **more)


def test_while_the_link_is_lost_the_draft_model_drives_slowly_and_the_goal_goes_on() -> None:
    world = lossy((53.0, 60.0), alone_answers=[FAR])
    world.run(time_allowance_s=25.0)
    alone = [decision for decision in world.decisions if decision.alone]
    assert alone and {decision.action.text for decision in alone if decision.action} == {"forward small"}
    assert {decision.speed_scale for decision in alone} == {0.5}
    times = [at for at, decision in zip(world.acted_at, world.decisions, strict=True) if decision.alone]
    assert min(times) >= 53.0 and max(times) < 60.0 + 1.0 + 2.0
    assert world.decisions[-2].speed_scale == 1.0 and not world.decisions[-2].alone, "and the verifier decides again"


@pytest.mark.parametrize("alone_s", [0.0, 5.0])
def test_the_draft_model_drives_for_as_long_as_it_may_and_then_the_robot_holds_once(alone_s: float) -> None:
    config = NavigatorConfig(guide=Guidance.NEVER, link=LinkLimits(degraded_s=alone_s))
    world = lossy((52.0, 80.0), alone_answers=[FAR], config=config)
    assert world.run(time_allowance_s=35.0).end is End.TIMEOUT
    moving = [at for at, each in zip(world.acted_at, world.decisions, strict=True) if each.alone]
    until = 52.1 + alone_s
    assert max(moving, default=0.0) <= until and bool(moving) == bool(alone_s)
    holds = [entry for entry in world.reports if entry[0] is State.HOLDING and entry[1].startswith("verifier lost")]
    assert len(holds) == 1
    between = [each.action for at, each in zip(world.acted_at, world.decisions, strict=True) if until < at < 80.0]
    assert between == [] or between == [None]
    assert any(at > 80.0 and each.action is not None for at, each in zip(world.acted_at, world.decisions, strict=True))


@pytest.mark.parametrize("answer", [DONE, GONE, "walk over there", AnswerLate("30 s"), ValueError("cannot draft")])
def test_what_the_draft_model_cannot_decide_alone_waits_for_the_verifier(answer: str | Exception) -> None:
    world = lossy((52.0, 60.0), alone_answers=[answer])
    assert world.run(time_allowance_s=20.0).end is End.TIMEOUT
    assert sum(question.alone for question in world.questions) == 1
    assert not {"stop", "not here"} & set(world.texts)
    assert any(at > 60.0 and each.action is not None for at, each in zip(world.acted_at, world.decisions, strict=True))


def test_an_object_that_the_draft_model_does_not_know_waits_for_the_verifier() -> None:
    world = lossy((50.2, 58.0), alone_answers=[FAR], known=[None, Vocabulary(("red",), ("ball",)), None])
    assert world.run(time_allowance_s=15.0).end is End.TIMEOUT
    assert not any(question.alone for question in world.questions)


def test_a_motion_on_half_an_answer_is_held_when_the_link_is_lost() -> None:
    world = lossy((51.8, 60.0), answers=[first(LEFT_LARGE)], alone_answers=[FAR], config=EARLY, answer_s=6.0)
    world.run(time_allowance_s=5.0)
    lost = next(n for n, at in enumerate(world.acted_at) if at >= 51.8)
    assert world.published[lost][1] == "hold" and world.acted_at[lost] < 51.9
    assert world.published[0] == (0, "turn left small", False) and world.questions[0].cancelled


# -- ends


@pytest.mark.parametrize("end", [End.CANCELLED, End.PREEMPTED, End.SHUTDOWN])
@pytest.mark.parametrize("moment", [50.3, 50.7, 51.3, 52.4])
def test_the_end_is_the_callers_and_the_hold_goes_out_at_once(end: End, moment: float) -> None:
    world = World([first(LEFT_LARGE)], config=AHEAD_CONFIG, end_at=moment, end=end, takes_holds=False)
    result = world.run()
    assert result.end is end
    assert world.published[-1][1] == "hold" and world.acted_at[-1] <= moment + 2 * POLL_S
    last = world.questions[-1]
    assert last.cancelled_at <= moment + 2 * POLL_S or last.began + world.answer_s <= moment, "decoding ends too"


# -- whatever comes

PIECES = ["Action:", "Action: ", "turn left", " small", " large", "forward", "stop", "not here", "\n", "."]
TEXTS = st.one_of(
    st.sampled_from([LEFT, AHEAD, DONE, GONE, *map(first, (LEFT_LARGE, STOP)), first(LEFT_LARGE) + " Action: stop"]),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)
FAILURES = st.sampled_from([VerifierLost("gone"), AnswerLate("late"), ValueError("no image"), Cancelled("cancelled")])
EXECUTIONS = st.one_of(
    st.none(),
    st.builds(
        Execution,
        st.sampled_from([*Outcome, None]),
        st.sampled_from([0.0, 0.1, 0.25, 0.8, -1.0, math.nan, math.inf]),
        st.sampled_from([0.0, 0.1, math.nan, math.inf]),
        st.sampled_from([0.0, 0.5, 3.0, math.nan]),
        st.sampled_from(["", "standing: odom silent"]),
    ),
)
POSES = st.one_of(st.none(), st.builds(PlanarPose, *[st.sampled_from([0.0, 0.1, 5.0, math.nan])] * 3))


class Hostile(World):
    """A world in which nothing can be relied upon: every look at it comes from `data`."""

    data: st.DataObject

    def objects(self, limit_s: float, *, mode: str | None = None) -> Vocabulary | None:
        return self.data.draw(st.sampled_from([None, WORDS, SEARCHES]))

    def execution(self, step: int) -> Execution | None:
        return self.data.draw(EXECUTIONS)

    def place(self) -> PlanarPose | None:
        return self.data.draw(POSES)

    def ask(self, prompt: str, jpeg: Jpegs, deadline_s: float, mode: str | None = None) -> Written:
        answer = self.data.draw(st.one_of(TEXTS, FAILURES))
        self.before_failure = self.data.draw(TEXTS)
        question = Garbled(self, answer, mode == "edge", self.now)
        question.pieces = self.data.draw(st.one_of(st.none(), st.lists(TEXTS, min_size=1, max_size=4)))
        self.questions.append(question)
        return question

    def act(self, decision: Decision) -> None:
        self.decisions.append(decision)
        action = decision.action
        if action is None or not action.kind.moves:
            assert decision.complete
            return
        question = self.questions[-1]
        if decision.complete:
            assert decision.reply is not None
            read = parse_answer(decision.reply.text).action
            assert read is not None and read.kind is action.kind
            assert read.size is action.size or (question.alone and action.size is ActionSize.SMALL)
        else:
            settled = committed_action(question.shown)
            assert settled is not None and settled[0] is action.kind
            assert action.size in (settled[1], ActionSize.SMALL)
        assert decision.alone == (question.alone or self.link is None)
        assert decision.speed_scale == (0.5 if question.alone else 1.0)


@dataclass
class Garbled(Written):
    """A question whose committed text need not grow as it should."""

    pieces: list[str] | None = None
    shown: str = ""

    @property
    def committed(self) -> str:
        since = int(4.0 * (self.world.now - self.began) / self.world.answer_s)
        honest = Written(self.world, self.answer, self.alone, self.began).committed
        self.shown = honest if self.pieces is None else self.pieces[since % len(self.pieces)]
        return self.shown


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data(), st.booleans(), st.lists(st.floats(50.0, 75.0), max_size=4), st.floats(50.5, 75.0))
def test_no_motion_but_what_is_read_in_committed_text_and_every_end_is_a_hold_or_a_stop(
    data: st.DataObject, linked: bool, changes: list[float], end_at: float
) -> None:
    times = sorted(changes)
    config = NavigatorConfig(guide=Guidance.NEVER, link=LinkLimits(degraded_s=4.0))
    world = Hostile([LEFT], config=config, end_at=end_at, link=Line() if linked else None)
    world.outages = tuple(zip(times[::2], times[1::2], strict=False))
    world.data = data
    result = world.run(time_allowance_s=15.0)
    last = world.decisions[-1].action
    ends = {STOP: End.STOPPED, NOT_HERE: End.NOT_FOUND}
    assert last is None or ends[last] is result.end
    if result.end in ends.values():
        assert last is not None
    assert all(question.done for question in world.questions)
