"""The episode on virtual time: motion, answers and the link share one clock."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edge_drafter import DecodingStats
from spec_vlm_nav.link_monitor import LinkLimits
from spec_vlm_nav.motion import wrap
from spec_vlm_nav.navigation_goal import End, NavigationGoal
from spec_vlm_nav.navigator import Navigator, NavigatorConfig
from spec_vlm_nav.runner import SOURCE
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.language.prompts import SEARCH_FORM, Blocked, ResponseOrder, Vocabulary
from vlm_nav_evaluation.closed_loop.timelines import AnswerTimeline, Timelines
from vlm_nav_evaluation.closed_loop.virtual_robot import (
    ALWAYS_UP,
    SIM_LIMITS,
    SIM_MOTION,
    ActingEpisode,
    VirtualLink,
    VirtualRobot,
    run_acting,
)
from vlm_nav_evaluation.search_prompts import Asking, SearchPrompts
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.objects import CLASSES, COLOURS

ACTION, REASONS = "Action: turn left large", "\nThe silver bottle is not in view."
KIND_S, SIZE_S, END_S = 0.3, 0.4, 1.5


class Scripted:
    """The same answer to every question, word by word."""

    def answer(self, prompt: str, jpeg: bytes, mode: str, rtt_s: float) -> AnswerTimeline:
        assert jpeg.startswith(b"\xff\xd8")
        texts = ((KIND_S, "Action: turn left"), (SIZE_S, ACTION), (END_S, ACTION + REASONS))
        return AnswerTimeline(texts, DecodingStats(mode=mode))

    def alone(self, prompt: str, jpeg: bytes) -> AnswerTimeline:
        return AnswerTimeline(((END_S, ACTION + REASONS),), DecodingStats(mode="edge"))


@pytest.fixture
def timelines() -> Timelines:
    return cast(Timelines, Scripted())


def run(timelines: Timelines, actions: int = 4, **settings: Any) -> ActingEpisode:
    config = NavigatorConfig(ResponseOrder.ACTION_FIRST, **settings)
    scene = scene_of(3, "easy", "silver bottle")
    return run_acting(scene, "x", config, VirtualRobot(scene, timelines, "full", 0.04, None), actions)


def test_acting_early_and_asking_in_motion_each_save_standing(timelines: Timelines) -> None:
    waits = run(timelines, act_early=False, look_ahead=False)
    assert min(waits.first_motion_s) >= END_S and waits.questions == waits.actions == 4
    assert waits.standing_s >= 4 * END_S, "it stands for every whole answer"
    early = run(timelines, look_ahead=False)
    assert all(KIND_S <= seconds < SIZE_S + 0.2 for seconds in early.first_motion_s), "once the kind is committed"
    # the same four turns: whole, and only sooner
    assert early.moving_s == pytest.approx(waits.moving_s, abs=0.2)
    assert early.standing_s < waits.standing_s - 3 * (END_S - SIZE_S)
    ahead = run(timelines)
    assert ahead.used_ahead > 0 and ahead.standing_s < early.standing_s


def test_in_a_dead_link_an_answer_waits_and_the_draft_model_turns_a_robot_that_may_not_hold(
    timelines: Timelines,
) -> None:
    def moved_s(degraded_s: float, dead: str) -> tuple[float, float]:
        scene = scene_of(3, "easy", "silver bottle")
        robot = VirtualRobot(scene, timelines, "full", 0.04, None, dead)
        link = LinkLimits(degraded_s=degraded_s)
        config = NavigatorConfig(ResponseOrder.ACTION_FIRST, time_allowance_s=30.0, link=link)
        episode = run_acting(scene, "x", config, robot, 40)
        assert episode.dead == dead
        return episode.moving_s, episode.actions

    always, dead, holds = moved_s(20.0, ALWAYS_UP), moved_s(20.0, "10/20"), moved_s(0.0, "10/20")
    assert holds[0] < dead[0] < always[0] and holds[1] < dead[1], "small actions in the dead link, none where it holds"


@given(st.lists(st.floats(0.0, 1000.0), min_size=1), st.floats(0.0, 9.9))
def test_a_link_carries_what_it_is_not_dead_for(times: list[float], dead_s: float) -> None:
    now = 0.0
    link, before = VirtualLink(lambda: now, dead_s, 10.0), (0.0, 0.0)
    for now in sorted(times):
        carried = link.carried_s()
        phase = now + (10.0 - dead_s) / 2.0
        dead = dead_s * (phase // 10.0) + max(0.0, phase % 10.0 - (10.0 - dead_s))
        assert carried == pytest.approx(now - dead, abs=1e-6)
        assert -1e-9 <= carried - before[1] <= now - before[0] + 1e-6
        before = now, carried


def test_a_verifier_that_always_says_turn_moves_the_robot_no_further_than_the_minutes_budget(
    timelines: Timelines,
) -> None:
    scene = scene_of(3, "easy", "silver bottle")
    robot = VirtualRobot(scene, timelines, "full", 0.0, None)
    yaws: list[float] = []

    def sleep(seconds: float) -> None:
        robot.sleep(seconds)
        yaws.append(robot.world.pose.yaw)

    config = NavigatorConfig(ResponseOrder.ACTION_FIRST)
    navigator = Navigator(NavigationGoal("find it"), robot, robot, robot.clock, sleep, lambda: None, config)
    try:
        result = navigator.run(time_allowance_s=59.0)
    finally:
        robot.close()
    turned = math.degrees(sum(abs(wrap(b - a)) for a, b in itertools.pairwise(yaws)))
    assert 0.9 * SIM_MOTION.degrees_a_minute <= turned <= SIM_MOTION.degrees_a_minute
    assert result.end is End.ROBOT_FAULT and "degrees a minute is used up" in result.message and result.held


SEARCHED = (
    "Action: turn left large\nThere is a doorway on the left, about 2 m away.",
    "Action: forward large\nThe silver bottle is straight ahead, about 1.5 m away.",
    *["Action: forward large\nThe silver bottle is not in view."] * 4,
    "Action: not here\nAll was searched.",
)


class Recorded:
    """Answers one after the other, and what was asked from where."""

    def __init__(self) -> None:
        self.robot: VirtualRobot | None = None
        self.asked: list[tuple[str, Pose]] = []

    def answer(self, prompt: str, jpeg: bytes, mode: str, rtt_s: float) -> AnswerTimeline:
        assert self.robot is not None
        text = SEARCHED[len(self.asked)]
        self.asked.append((prompt, self.robot.world.pose))
        return AnswerTimeline(((0.1, text),), DecodingStats(mode=mode))


def test_a_search_in_the_closed_loop_asks_what_the_robot_asks() -> None:
    """Doorways, where the object was, blocked actions: the same lines for the same views, to the letter."""
    words = Vocabulary(tuple(COLOURS), tuple(CLASSES), SEARCH_FORM)
    scene, order, answers = scene_of(3, "middle", "silver bottle", "two_rooms"), ResponseOrder.ACTION_FIRST, Recorded()
    answers.robot = robot = VirtualRobot(scene, cast(Timelines, answers), "full", 0.0, words)
    config = NavigatorConfig(order, look_ahead=False)
    goal = NavigationGoal("could you look for the silver bottle?")
    navigator = Navigator(goal, robot, robot, robot.clock, robot.sleep, lambda: None, config)
    try:
        assert navigator.run().end is End.NOT_FOUND
    finally:
        robot.close()
    assert any(isinstance(entry, Blocked) for entry in goal.done)
    prompts, asked = SearchPrompts(scene.target, Asking(order, form=SEARCH_FORM)), []
    for turn, (_, pose) in enumerate(answers.asked):
        asked.append(prompts.ask(pose, goal.done[:turn]))
        prompts.read(SEARCHED[turn])
    assert asked == [prompt for prompt, _ in answers.asked]
    assert "Doors: " in asked[1] and "Last seen: " in asked[2] and " blocked" in asked[-1]


def test_the_speeds_are_those_of_the_simulated_robot() -> None:
    config = yaml.safe_load((SOURCE / "config" / "sim.yaml").read_text())
    executor, bridge = (config[f"/**/{name}"]["ros__parameters"] for name in ("action_executor", "go2_bridge"))
    assert (executor["forward_speed"], executor["turn_speed"]) == (SIM_MOTION.forward_speed, SIM_MOTION.turn_speed)
    assert (bridge["max_forward_speed"], bridge["max_turn_speed"]) == (SIM_LIMITS.vx, SIM_LIMITS.wz)
