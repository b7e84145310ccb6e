"""Questions are picked by what they name, and answers count by what they see and do."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from adapters_training.evaluate import Naming, Score, claimed_side, judge, pick
from adapters_training.records import Task
from tests.adapters_training.frames import make_frame

QUERIES = {
    Naming.OBJECT: "find the red ball",
    Naming.CLASS: "find a ball",
    Naming.COLOUR: "find something red",
}


@pytest.mark.parametrize(("asked", "query"), QUERIES.items())
def test_questions_of_one_kind_are_picked(asked: Naming, query: str) -> None:
    frame = make_frame(np.random.default_rng(1), "left")
    tasks = [Task("red", "ball", None, "stop", "search", query=each) for each in QUERIES.values()]
    able = [msgspec.structs.replace(frame, tasks=tasks)] * 3
    without = msgspec.structs.replace(frame, tasks=[task for task in tasks if task.query != query])
    assert [task.query for _, task in pick([without, *able], 9, asked=asked)] == [query] * 3
    assert Naming.of(Task("red", "ball", None, "stop", "search")) is Naming.OBJECT


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("I see the red ball on the left, about 1.5 m away. The red cone on the right is not it.", "left"),
        ("The red ball is a little to the right, about 2 m away.", "slightly right"),
        ("The red ball is not in view. I just see the red box to my left.", None),
        ("I do not see the red ball.", None),
    ],
)
def test_the_side_that_an_answer_claims(text: str, side: str | None) -> None:
    assert claimed_side(text, "red ball") == side


def test_scores_ask_for_object_side_and_action() -> None:
    frame = make_frame(np.random.default_rng(0), "left", "turn left medium")
    seen, absent = frame.tasks
    score = Score()
    judge(score, seen, "I see the red ball on the left, about 1.5 m away.\nAction: turn left small")
    judge(score, seen, "I see the red ball on the right, about 1.5 m away.\nAction: turn right small")
    judge(score, absent, "There is no blue ball here. I look around.\nAction: turn left large")
    judge(score, Task("red", "ball", seen.seen, "stop", "reached"), "I see the red ball on the left.\nAction: stop")
    rates = score.rates()
    assert rates["grounded"] == 0.75
    assert rates["side"] == pytest.approx(2 / 3)
    assert rates["action kind"] == 0.75
    assert rates["action exact"] == 0.5
    assert rates["stop precision"] == rates["stop recall"] == 1.0
