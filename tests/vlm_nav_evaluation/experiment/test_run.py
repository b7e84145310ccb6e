"""The engine: turns, warm-up, refusals and resume with made-up answers, and where answers leave the target's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_drafter import DecodingStats
from speculation.vlm.model import Vlm
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.reference_answers import TARGET, Flip, ModelAlone, bugs, first_flip, margins
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, take_turns
from vlm_nav_evaluation.journal import Journal

ASKED = [Question(f"question {number}", b"") for number in range(20)]
Log = list[tuple[str, str]]


def arm(log: Log, name: str, tokens: Callable[[Question], tuple[int, ...]], seconds: float = 1.0) -> Arm:
    def decode(question: Question) -> Answer:
        log.append((name, question.prompt))
        found = tokens(question)
        stats = DecodingStats(name, tokens=len(found), rounds=1, early_hits={3: 1}, total_s=seconds)
        return Answer(found, stats, {"place": 7})

    return Arm(name, decode=decode)


def test_arms_take_turns_in_a_shuffled_order_that_a_seed_repeats() -> None:
    logs: list[Log] = [[], [], []]
    for log, seed in zip(logs, (0, 0, 1), strict=True):
        arms = [arm(log, name, lambda _: (1,)) for name in "abc"]
        run = take_turns(arms, ASKED, [Question("before", b"")], seed=seed)
    assert logs[0] == logs[1] != logs[2]
    assert logs[0][:3] == [(name, "before") for name in "abc"]
    measured = logs[0][3:]
    for number, question in enumerate(ASKED):
        turn = measured[3 * number : 3 * number + 3]
        assert {each[1] for each in turn} == {question.prompt} and sorted(each[0] for each in turn) == list("abc")
    firsts = [measured[3 * number][0] for number in range(len(ASKED))]
    assert set(firsts) == set("abc")
    assert [len(answers) for answers in run.answers.values()] == [len(ASKED)] * 3 and run.different == 0


def test_an_optional_arm_that_refuses_is_left_out_and_any_other_ends_the_run() -> None:
    def refuse(question: Question) -> tuple[int, ...]:
        if question is ASKED[1]:
            raise ValueError("no\n  such thing")
        return (1,)

    log: Log = []
    some = Arm("peer", decode=arm(log, "peer", refuse).decode, optional=True)
    run = take_turns([some, arm(log, "own", lambda _: (1,))], ASKED)
    assert run.refused == {"peer": "no such thing"} and list(run.answers) == ["own"] and run.exact == ["own"]
    with pytest.raises(ValueError, match="such thing"):
        take_turns([arm(log, "own", refuse)], ASKED)
    run = take_turns([arm(log, "own", refuse), arm(log, "other", lambda _: (1,))], ASKED, leave_out=True)
    assert run.left_out == {"1": "no\n  such thing"} and "1" not in run.names
    assert {len(answers) for answers in run.answers.values()} == {len(ASKED) - 1}


def test_an_interrupted_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    def stop(question: Question) -> tuple[int, ...]:
        if question is ASKED[5]:
            raise KeyboardInterrupt
        return (4, 5)

    log: Log = []
    with pytest.raises(KeyboardInterrupt):
        take_turns([arm(log, "one", stop)], ASKED[:8], journal=Journal(tmp_path, "run", {}))
    log.clear()
    run = take_turns([arm(log, "one", lambda _: (4, 5))], ASKED[:8], (), journal=Journal(tmp_path, "run", {}))
    assert [prompt for _, prompt in log] == [question.prompt for question in ASKED[5:8]]
    whole = take_turns([arm([], "one", lambda _: (4, 5))], ASKED[:8], ())
    assert run == whole and run.answers["one"][0].stats.early_hits == {3: 1}
    (tmp_path / "run.jsonl").write_text('{"question": "0", "arm": "one"}\n')
    with pytest.raises(ValueError, match="is no answer"):
        take_turns([arm(log, "one", stop)], ASKED, journal=Journal(tmp_path, "run", {}))
    (tmp_path / "run.settings.json").write_text("no")
    with pytest.raises(ValueError, match="is no JSON object; begin again with --restart"):
        Journal(tmp_path, "run", {})


def test_only_flips_above_the_limit_of_the_dtype_are_bugs() -> None:
    flips = [Flip(0, "sd", 1, 5e-5), Flip(1, "sd", 1, 1e-6), Flip(0, "full", 3, float("nan")), Flip(0, "peer", 0, 1.0)]
    assert bugs(flips, "float32", ["sd", "full"]) == [flips[2]] and len(bugs(flips, "float64", ["sd"])) == 2
    assert bugs(flips, "bfloat16", ["sd", "full"]) == []
    assert margins(flips, ["sd", "fsd"]) == {"sd": [1e-6, 5e-5], "fsd": []}
    cut = first_flip(0, "sd", [0, 1], [np.zeros(3)] * 2, [0])
    assert cut is not None and bugs([cut], "float32", ["sd"]) == [cut], "an answer that ends early is always one"


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
