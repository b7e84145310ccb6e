"""Where answers leave the target's own, and by which margin."""

from __future__ import annotations

import numpy as np
import pytest

from speculation.vlm.model import Vlm
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.reference_answers import TARGET, Flip, ModelAlone, bugs, first_flip, margins
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, take_turns


def test_a_flip_is_the_first_difference_with_the_targets_margin() -> None:
    rows = [np.array([3.0, 1.0, 0.0]), np.array([0.0, 2.0, 1.75])]
    assert first_flip(0, "sd", [0, 1], rows, [0, 1]) is None
    flip = first_flip(4, "sd", [0, 1], rows, [0, 2])
    assert flip is not None and (flip.frame, flip.position, flip.margin) == (4, 1, 0.25)
    short = first_flip(0, "sd", [0, 1], rows, [0])
    assert short is not None and (short.position, short.margin) == (1, float("inf"))


def test_only_flips_above_the_limit_of_the_dtype_are_bugs() -> None:
    flips = [Flip(0, "sd", 1, 5e-5), Flip(1, "sd", 1, 1e-6), Flip(0, "full", 3, float("nan")), Flip(0, "peer", 0, 1.0)]
    assert bugs(flips, "float32", ["sd", "full"]) == [flips[2]] and len(bugs(flips, "float64", ["sd"])) == 2
    assert bugs(flips, "bfloat16", ["sd", "full"]) == []
    assert margins(flips, ["sd", "fsd"]) == {"sd": [1e-6, 5e-5], "fsd": []}


def test_an_answer_that_leaves_the_targets_is_found_with_its_margin(target: Vlm) -> None:
    asked, alone = questions("random", 3), ModelAlone(target, 6)

    def wrong(question: Question) -> Answer:
        answer = alone.decode(question)
        return Answer((*answer.tokens[:-1], 0), answer.stats) if question is asked[1] else answer

    run = take_turns([alone.arm(), Arm("wrong", decode=wrong)], asked)
    (flip,) = alone.flips(run, asked)
    assert (flip.frame, flip.mode, flip.position) == (1, "wrong", len(run.answers[TARGET][1].tokens) - 1)
    assert flip.margin > 0.0 and run.different == 1
    assert run.stats(TARGET)[0].cloud_passes == run.stats(TARGET)[0].tokens == len(run.answers[TARGET][0].tokens)
    with pytest.raises(ValueError):
        alone.decode(Question("find it", b"no image"))
