"""A run's questions, asked again in several modes at declared times."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from edge_drafter import Mode
from spec_vlm_nav.graph import PROJECT
from vlm_nav_evaluation import drafting_gain as gain
from vlm_nav_evaluation.drafting_gain import FORGETFUL, PROFILE, measure, questions
from vlm_nav_evaluation.experiment.questions import questions as rooms
from vlm_nav_evaluation.html_page import write_page
from vlm_nav_evaluation.report.run import Decision


@pytest.mark.usefixtures("forked_verifiers")
def test_modes_answer_a_runs_questions_alike_and_the_report_shows_what_each_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "BUDGET_S", 0.0)
    monkeypatch.setattr(gain, "LEAST", 1)
    options = argparse.Namespace(
        target_model=PROJECT / "models" / "target", draft_model=PROJECT / "models" / "draft", profile="raw", link="wifi"
    )
    asked = [replace(each, name=str(step)) for step, each in enumerate(rooms("simulation", 2))]
    found = measure(asked, options)
    assert len(found.run.names) == 1 and not found.run.different
    assert set(found.run.answers) == {"cloud", "sd", "full", FORGETFUL}
    assert found.run.figures()["cloud"]["passes_per_token"] == pytest.approx(1.0)
    assert PROFILE in found.text() and "link wifi" in found.text() and "all answers equal" in found.text()
    assert set(found.timelines) == {Mode.CLOUD.value, Mode.FULL.value}
    assert all(each.startswith("NOT the declared times") for each in found.late), "a busy machine says so"
    assert "\nlate\n" in replace(found, late=["late"]).text()
    page = write_page(tmp_path / "page.html", "a run", [found.section()]).read_text()
    assert page.count("data:image/png") == 2 and f"<td>{FORGETFUL}</td>" in page


def test_only_frames_that_were_asked_about_are_asked_again() -> None:
    decisions = [Decision(1, step, "forward small", "", 10 * step, 10 * step, frame=b"jpeg") for step in range(4)]
    decisions[1].frame = None
    asked = questions(decisions, {0: "first", 10: "no frame", 30: "last"})
    assert {(each.prompt, each.jpeg, each.name) for each in asked} == {("first", b"jpeg", "0"), ("last", b"jpeg", "3")}
    with pytest.raises(ValueError, match="asked 1 questions that its bag has frames of; 2 are needed"):
        measure(asked[:1], argparse.Namespace(profile="", link=""))
