"""Whole goals on a clock of the test's own, with a scripted model and a scripted robot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from edge_drafter.reply import AnswerLate, Reply, VerifierLost, VerifierRefused
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.motion import Outcome
from spec_vlm_nav.navigator import (
    HOLD_S,
    INVALID_LIMIT,
    SETTLE_S,
    End,
    Ending,
    Frame,
    GoalResult,
    Navigator,
    NavigatorConfig,
    State,
)
from speculation.prompts import (
    STOP,
    ActionKind,
    ActionSize,
    Guidance,
    NavigationAction,
    ResponseOrder,
    Vocabulary,
    compose,
    format_answer,
)

CONFIG = NavigatorConfig(guide=Guidance.NEVER)
WORDS = Vocabulary(("silver",), ("bottle",))
LEFT = "I see nothing.\nAction: turn left large"
AHEAD = "Ahead.\nAction: forward small"
LEFT_LARGE = NavigationAction(ActionKind.TURN_LEFT, ActionSize.LARGE)
DONE = format_answer("The silver bottle is right ahead.", STOP)


@dataclass
class World:
    """A robot whose camera and executor work, unless a test says otherwise, and a model that reads from a list."""

    answers: list[str | Exception]
    now: float = 50.0
    frame_period: float = 0.125
    camera_dies_at: float = math.inf
    camera_back_at: float = math.inf
    outcome: Callable[[int], Ending | None] = lambda step: Ending(Outcome.DONE, "done")
    acts: list[tuple[int, NavigationAction | None]] = field(default_factory=list)
    reports: list[tuple[State, str]] = field(default_factory=list)
    asked_at: list[tuple[float, float]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    known: list[Vocabulary | Exception | None] = field(default_factory=lambda: [None])
    config: NavigatorConfig = CONFIG
    cancel_at: float = math.inf
    silence: float = 0.0

    def objects(self, limit_s: float) -> Vocabulary | None:
        known = self.known.pop(0) if len(self.known) > 1 else self.known[0]
        if isinstance(known, Exception):
            raise known
        return known

    def answer(self, prompt: str, jpeg: bytes, deadline_s: float) -> Reply:
        self.asked_at.append((self.now, deadline_s))
        self.prompts.append(prompt)
        self.now += 0.5
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer, DecodingStats())

    def frame_after(self, moment: float) -> Frame | None:
        arrived = math.floor(self.now / self.frame_period) * self.frame_period
        dead = self.camera_dies_at <= arrived < self.camera_back_at
        return Frame(b"jpeg", arrived, 0.0, None) if arrived > moment and not dead else None

    def asked(self, prompt: str, frame: Frame) -> None:
        self.told.append(prompt)

    def act(self, step: int, action: NavigationAction | None, reply: Reply | None, frame: Frame | None) -> None:
        self.acts.append((step, action))

    def ending(self, step: int) -> Ending | None:
        return self.outcome(step)

    def executor_silence(self) -> float:
        return self.silence

    def report(self, state: State, reason: str = "") -> None:
        self.reports.append((state, reason))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, **options: float) -> GoalResult:
        navigator = Navigator(self, self, lambda: self.now, self.sleep, lambda: self.now >= self.cancel_at, self.config)
        return navigator.run("find the silver bottle", **options)  # type: ignore[arg-type]

    @property
    def texts(self) -> list[str]:
        return ["hold" if action is None else action.text for _, action in self.acts]


def test_actions_are_carried_out_until_the_model_stops() -> None:
    world = World([LEFT, AHEAD, DONE])
    result = world.run()
    assert (result.end, result.actions) == (End.STOPPED, 2)
    assert world.texts == ["turn left large", "forward small", "stop"]
    assert [step for step, _ in world.acts] == [0, 1, 2]


def test_every_step_looks_at_a_frame_taken_after_the_robot_came_to_rest() -> None:
    finished: list[float] = []
    world = World([LEFT, LEFT, DONE])

    def outcome(step: int) -> Ending:
        finished.append(world.now)
        return Ending(Outcome.DONE, "")

    world.outcome = outcome
    world.run()
    for ended, (asked, _) in zip(finished, world.asked_at[1:], strict=True):
        assert asked >= ended + SETTLE_S


def test_an_unreadable_answer_holds_the_robot_and_says_why() -> None:
    world = World(["walk over there", LEFT, DONE])
    result = world.run()
    assert result.end is End.STOPPED
    assert world.texts == ["hold", "turn left large", "stop"]
    assert any(state is State.HOLDING and "unreadable" in reason for state, reason in world.reports)


def test_a_model_that_never_names_an_action_ends_the_goal_standing() -> None:
    world = World(["nonsense"])
    result = world.run()
    assert result.end is End.NO_VALID_ACTION
    assert len(world.asked_at) == INVALID_LIMIT
    assert set(world.texts) == {"hold"}


def test_a_lost_verifier_holds_the_robot_and_the_goal_goes_on_when_it_returns() -> None:
    lost = VerifierLost("no answer to heartbeats for 1 s")
    world = World([LEFT, lost, lost, lost, LEFT, DONE])
    result = world.run()
    assert (result.end, result.actions) == (End.STOPPED, 2)
    assert world.texts == ["turn left large", "hold", "turn left large", "stop"]
    assert (State.HOLDING, "verifier lost: no answer to heartbeats for 1 s") in world.reports


def test_a_verifier_that_stays_away_ends_the_goal_with_the_reason() -> None:
    world = World([VerifierLost("connection refused")])
    result = world.run(time_allowance_s=10.0)
    assert result.end is End.LINK_LOST
    assert "connection refused" in result.message
    assert 10.0 <= result.elapsed_s < 12.0


def test_a_verifier_that_refuses_ends_the_goal_at_once_with_its_words() -> None:
    world = World([LEFT, VerifierRefused("another tokenizer")])
    result = world.run()
    assert result.end is End.LINK_LOST
    assert "another tokenizer" in result.message
    assert world.texts[-1] == "hold"
    assert result.elapsed_s < 10.0


def test_a_dead_camera_holds_and_a_living_one_goes_on() -> None:
    world = World([LEFT, DONE], camera_dies_at=50.6, camera_back_at=55.0)
    result = world.run()
    assert result.end is End.STOPPED
    assert world.texts == ["turn left large", "hold", "stop"]
    assert any("camera" in reason for _, reason in world.reports)


def test_a_camera_that_stays_dead_is_named_in_the_result() -> None:
    result = World([LEFT], camera_dies_at=0.0).run(time_allowance_s=8.0)
    assert result.end is End.STALE_CAMERA


def test_blocked_again_and_again_is_an_obstacle_but_a_free_move_forgets() -> None:
    world = World([LEFT], outcome=lambda step: Ending(Outcome.BLOCKED, "blocked"))
    assert world.run().end is End.OBSTACLE
    assert world.texts[-1] == "hold"
    mixed = World([LEFT] * 12 + [DONE], outcome=lambda s: Ending(Outcome.DONE if s % 3 == 0 else Outcome.BLOCKED, ""))
    assert mixed.run().end is End.STOPPED


def test_an_executor_that_never_finishes_is_a_robot_fault() -> None:
    world = World([LEFT], outcome=lambda step: None, silence=2.0)
    result = world.run()
    assert result.end is End.ROBOT_FAULT
    assert (State.HOLDING, "action_executor is silent") in world.reports


def test_lost_odometry_holds_and_goes_on() -> None:
    endings = [Ending(None, "odometry went silent"), *[Ending(Outcome.DONE, "")] * 3]
    world = World([LEFT, LEFT, DONE], outcome=lambda step: endings[min(step, 3)])
    assert world.run().end is End.STOPPED
    assert "hold" in world.texts


@pytest.mark.parametrize("moment", [50.05, 50.3, 51.0, 53.0])
def test_cancel_ends_a_goal_at_any_moment_with_the_robot_standing(moment: float) -> None:
    world = World([LEFT], cancel_at=moment)
    result = world.run()
    assert result.end is End.CANCELLED
    assert world.texts[-1] == "hold"


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_a_goal_that_ends_waits_until_the_executor_took_the_hold_also_when_cancelled(lost: float) -> None:
    world = World([LEFT], cancel_at=50.3)
    world.outcome = lambda step: Ending(Outcome.DONE, "") if world.now >= 51.0 + lost else None
    result = world.run()
    assert (result.end, result.held, result.message) == (End.CANCELLED, True, "cancelled")
    assert world.texts == ["hold"] and world.now >= 51.0 + lost


@pytest.mark.parametrize(
    ("answers", "options", "end"),
    [
        ([LEFT], {"time_allowance_s": 3.0}, End.TIMEOUT),
        ([VerifierRefused("another tokenizer")], {}, End.LINK_LOST),
        (["nonsense"], {}, End.NO_VALID_ACTION),
    ],
)
def test_a_hold_that_nobody_confirms_is_said_in_the_result(
    answers: list[str | Exception], options: dict[str, float], end: End
) -> None:
    world = World(answers, outcome=lambda step: None, silence=2.0)
    result = world.run(**options)
    assert (result.end, result.held) == (end, False)
    assert result.message.endswith("; action_executor did not confirm the HOLD")
    assert world.texts[-1] == "hold"
    assert result.elapsed_s < 60.0, "bounded"


def test_neither_a_stop_nor_a_dry_run_waits_for_a_hold() -> None:
    stopped = World([DONE], outcome=lambda step: None).run()
    assert (stopped.end, stopped.held) == (End.STOPPED, True)
    dry = World([LEFT], outcome=lambda step: None, cancel_at=50.3)
    result = dry.run(dry=True)
    assert (result.end, result.held) == (End.CANCELLED, True)
    assert dry.now < 50.3 + HOLD_S


def test_limits_of_time_and_actions() -> None:
    slow = World([LEFT]).run(time_allowance_s=7.0)
    assert slow.end is End.TIMEOUT
    assert World([LEFT]).run(max_actions=3).actions == 3
    assert World([LEFT]).run(max_actions=3).end is End.OUT_OF_ACTIONS


def test_no_step_is_given_more_time_than_the_goal_has_left() -> None:
    world = World([LEFT])
    world.run(time_allowance_s=7.0)
    assert all(deadline <= 50.0 + 7.0 - asked + 0.051 for asked, deadline in world.asked_at)
    late = World([AnswerLate("30 s"), DONE])
    assert late.run().end is End.STOPPED


def test_each_prompt_tells_what_was_carried_out_for_this_goal_and_nothing_else() -> None:
    endings = {0: Ending(Outcome.DONE, ""), 2: Ending(Outcome.BLOCKED, ""), 3: Ending(None, "odometry went silent")}
    world = World([LEFT, "nonsense", LEFT, LEFT, AHEAD, DONE], outcome=lambda step: endings.get(step, endings[0]))
    assert world.run().end is End.STOPPED
    assert world.texts == [
        "turn left large",
        "hold",
        "turn left large",
        "turn left large",
        "hold",
        "forward small",
        "stop",
    ]
    find, left = "find the silver bottle", "find the silver bottle\nDone: turn left large"
    # The second was blocked, the third lost its odometry.
    assert world.prompts == [find, left, left, f"{left} x2", f"{left} x2", f"{left} x2, forward small"]
    assert world.told == world.prompts
    again = World([DONE], now=world.now)
    again.run()
    assert again.prompts == [find], "another goal begins anew"


@pytest.mark.parametrize("guide", [True, False])
def test_the_order_of_the_answer_is_asked_for_and_read(guide: bool) -> None:
    first = format_answer("I see nothing.", LEFT_LARGE, ResponseOrder.ACTION_FIRST)
    guidance = Guidance.ALWAYS if guide else Guidance.NEVER
    config = NavigatorConfig(order=ResponseOrder.ACTION_FIRST, guide=guidance)
    world = World([first, DONE], config=config)
    assert world.run().end is End.STOPPED
    assert world.texts == ["turn left large", "stop"]
    assert world.prompts[1] == compose("find the silver bottle", [LEFT_LARGE], config.order, guide)


def test_the_guide_is_decided_by_the_model_that_answers_when_it_is_asked() -> None:
    """A goal comes before the verifier; then a target that takes any instruction is replaced by one with a list."""
    lost = VerifierLost("no verifier answers")
    world = World([LEFT, DONE], known=[lost, None, WORDS], config=NavigatorConfig())
    assert world.run().end is End.STOPPED
    assert world.texts == ["hold", "turn left large", "stop"]
    assert (State.HOLDING, "verifier lost: no verifier answers") in world.reports
    find = "find the silver bottle"
    assert world.prompts == [compose(find, guide=True), compose(find, [LEFT_LARGE])]


def test_an_object_that_the_model_does_not_know_ends_the_goal_with_those_it_knows() -> None:
    world = World([LEFT], known=[VerifierLost("not yet"), Vocabulary(("red",), ("ball",))])
    result = world.run()
    assert result.end is End.BAD_INSTRUCTION and result.actions == 0
    assert "names no known object" in result.message and "known colours: red; known objects: ball" in result.message
    assert world.texts == ["hold", "hold"] and world.prompts == []


def test_a_verifier_that_refuses_ends_the_goal_before_anything_is_asked() -> None:
    world = World([LEFT], known=[VerifierRefused("its tokenizer is not the draft model's")])
    result = world.run()
    assert result.end is End.LINK_LOST and "tokenizer" in result.message and world.prompts == []


def test_a_dry_run_decides_and_never_waits_for_legs() -> None:
    world = World([LEFT, DONE], outcome=lambda step: None)
    assert world.run(dry=True).end is End.STOPPED
    assert len(set(world.prompts)) == 1, "nobody walked, so nothing was done"
