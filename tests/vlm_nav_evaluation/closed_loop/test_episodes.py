"""What answers do in an episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.action_publisher import BLOCKED_LIMIT, STUCK_LIMIT
from speculation.language.prompts import (
    ACTIONS,
    MOTIONS,
    NOT_HERE,
    STOP,
    ActionKind,
    NavigationAction,
    format_answer,
    parse_answer,
)
from speculation.wire import frames_of, jpeg_of
from tests.models import frame, tiny_model
from vlm_nav_evaluation.closed_loop.episodes import Asked, Episode, EpisodeKey, Setting, model_alone, run_one
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.search_prompts import Asking
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import MAX_BLOCKED, MAX_STUCK, Outcome

SETTING = Setting(EdgeConfig.flat(Path("draft"), mode="edge"), Path("target"), max_actions=3)


class FixedAnswer:
    """Stands for the models: always the same answer."""

    def __init__(self, text: str) -> None:
        self.answer = text
        self.prompts: list[str] = []
        self.shown: list[tuple[bytes, ...]] = []

    def text(self, question: Question) -> str:
        assert all(frame.startswith(b"\xff\xd8") for frame in frames_of(question.jpeg))
        self.shown.append(frames_of(question.jpeg))
        self.prompts.append(question.prompt)
        return self.answer


def episode(text: str, seed: int = 3) -> Episode:
    models: Any = FixedAnswer(text)
    return run_one(EpisodeKey("middle", seed, "target"), SETTING, models)


@pytest.mark.parametrize("answers", ["free", "constrained"])
def test_a_target_alone_answers_as_it_is_told_to(tmp_path: Path, answers: str) -> None:
    edge = EdgeConfig.flat(tmp_path, mode="edge", answers=answers, capacity=256, max_tokens=24)
    model = model_alone("target", Setting(edge, tiny_model(tmp_path)))
    text = model.text(Question("find the red ball", jpeg_of([encode_jpeg(frame(1))])))
    assert (parse_answer(text).action is not None) == (answers == "constrained")


def test_a_question_holds_the_frames_of_the_last_views() -> None:
    turn = NavigationAction(ActionKind.TURN_LEFT, ACTIONS[0].size)
    models: Any = FixedAnswer(format_answer("I see nothing.", turn))
    run_one(EpisodeKey("middle", 3, "target"), replace(SETTING, edge=structs.replace(SETTING.edge, frames=2)), models)
    first, second, third = (shown[-1] for shown in models.shown)
    assert models.shown == [(first,), (first, second), (second, third)] and len({first, second, third}) == 3


def test_a_stop_far_away_and_an_unreadable_answer_end_the_episode() -> None:
    stopped = episode(format_answer("Here it is.", STOP))
    assert stopped.outcome == Outcome.STOPPED_AWAY.value and stopped.actions == ("stop",)
    assert stopped.gap_m > 1.0
    mute = episode("I do not know.")
    assert mute.outcome == Outcome.NO_ACTION.value and mute.actions == ()


def test_models_of_form_2_get_what_was_searched_and_what_was_blocked() -> None:
    ahead = NavigationAction(ActionKind.FORWARD, MOTIONS[2].size)
    models: Any = FixedAnswer(format_answer("There is a doorway on the left, about 2 m away.", ahead))
    setting = replace(SETTING, how=Asking(form=2), max_actions=20)
    result = run_one(EpisodeKey("easy", 3, "target"), setting, models)
    assert result.outcome == Outcome.BLOCKED.value and result.collisions >= MAX_BLOCKED == BLOCKED_LIMIT
    assert MAX_STUCK == STUCK_LIMIT
    assert models.prompts[0].splitlines()[1] == "Seen: here 1/8"
    assert any(line.startswith("Doors: ") for line in models.prompts[1].splitlines())
    assert models.prompts[-1].splitlines()[1].endswith(f"{ahead.text} blocked x{MAX_BLOCKED - 1}")
    old: Any = FixedAnswer(models.answer)
    run_one(EpisodeKey("easy", 3, "target"), replace(setting, how=Asking()), old)
    assert len(old.prompts[-1].splitlines()) == 2 and "blocked" not in old.prompts[-1]


def test_what_is_absent_is_rightly_not_here() -> None:
    models: Any = FixedAnswer(format_answer("", NOT_HERE))
    for asked, right in ((Asked.ABSENT, True), (Asked.CLASS, False)):
        result = run_one(EpisodeKey("middle", 3, "target", "two_rooms", asked.value), SETTING, models)
        assert (result.outcome, result.success) == (Outcome.NOT_FOUND.value, right)
    assert models.prompts[-1] == f"find a {result.object_class}"
    oracle = run_one(EpisodeKey("easy", 3, "oracle", asked=Asked.ABSENT.value), replace(SETTING, max_actions=60), None)
    assert oracle.success and oracle.actions[-1] == NOT_HERE.text
