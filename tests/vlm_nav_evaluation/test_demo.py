"""What the demo prints while the robot walks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spec_vlm_nav.messages import CLOUD_VERIFIED, EDGE_ONLY, figures, to_numbers
from speculation.language.prompts import STOP, ActionSize, NavigationAction, Vocabulary
from tests.vlm_nav_evaluation.report.recording import FIGURES, FORWARD
from vlm_nav_evaluation.demo import StepPrinter, target_of


def decision(
    step: int,
    action: NavigationAction | None,
    source: int = CLOUD_VERIFIED,
    reasoning: str = "",
    complete: bool = True,
) -> Any:
    kind, size, _ = to_numbers(action)
    return SimpleNamespace(
        goal=1, step=step, kind=kind, size=size, source=source, reasoning=reasoning, complete=complete
    )


def stats(step: int) -> Any:
    return SimpleNamespace(goal=1, step=step, profile="", link_rtt_s=-1.0, **figures(FIGURES))


def test_a_step_is_printed_once_when_decision_and_figures_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter()
    printer("navigation_action", decision(3, NavigationAction(FORWARD.kind, ActionSize.SMALL), complete=False))
    printer("navigation_action", decision(3, FORWARD, reasoning="A wall.\nI go on."))
    assert capsys.readouterr().out == ""
    printer("decoding_stats", stats(3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step  3  forward large" and lines[1].strip() == "reason: A wall. I go on."
    assert "24 tokens" in lines[2] and "140 ms" in lines[3] and len(lines) == 4
    printer("navigation_action", decision(3, FORWARD))
    assert capsys.readouterr().out == "", "decisions are published again until they are taken"
    printer("decoding_stats", stats(4))
    printer("odom", None)
    assert capsys.readouterr().out == ""
    printer("navigation_action", decision(4, STOP, EDGE_ONLY))
    assert capsys.readouterr().out.startswith("step  4  stop (edge model alone)\n")
    assert [entry.step for entry in printer.stats] == [3, 4]


def test_the_room_holds_what_a_sentence_names() -> None:
    known = Vocabulary(("red", "green"), ("chair",))
    assert target_of("could you look for a green chair?", known, 0) == "green chair"
    assert target_of("银色的瓶子", None, 0) == "silver bottle", "models without a list find what the simulator has"
    for sentence in ("do not go to the green chair", "find the dragon"):
        with pytest.raises(ValueError, match="say for example"):
            target_of(sentence, known, 0)
