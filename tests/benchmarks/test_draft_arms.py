"""Other eyes for the draft model, on the tiny pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import draft_arms
from benchmarks.fed_arms import ORIN
from speculation.frames import decode_jpeg
from speculation.vlm.inputs import as_sent, prepare
from speculation.vlm.load import Vlm
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.virtual_time.record import Models, record


@pytest.fixture(scope="module")
def sessions(tiny_draft: Path) -> dict[str, VlmSession]:
    return draft_arms.sessions_of(tiny_draft, "float64", decode_jpeg(questions("random", 1)[0].jpeg))


def test_half_a_frame_takes_fewer_tokens(sessions: dict[str, VlmSession]) -> None:
    question = questions("random", 1)[0]
    whole, half, blind = (
        len(prepare(sessions[view].vlm, question.prompt, image).ids)
        for view, image in (("whole", question.jpeg), ("half", question.jpeg), ("blind", None))
    )
    assert blind < half < whole


def test_every_arm_drafts_what_its_views_give(target: Vlm, draft: Vlm, sessions: dict[str, VlmSession]) -> None:
    """The whole frame is the recording's own draft; the mean of two views is the mean of their distributions."""
    asked = [replace(question, jpeg=as_sent(target, question.jpeg)) for question in questions("random", 2)]
    recording = record(Models(target, draft, None, None), asked, 10)
    figures, recordings = draft_arms.measured(sessions, recording, asked, 4)
    for step, again in zip(recording.steps, recordings["whole frame"].steps, strict=True):
        np.testing.assert_array_equal(step.draft_tokens, again.draft_tokens)
        np.testing.assert_allclose(step.draft_probabilities, again.draft_probabilities, rtol=1e-4)
    step = recording.steps[0]
    views = [draft_arms.seen(sessions["whole"], asked[0], step.tokens, sighted) for sighted in (True, False)]
    mean = np.mean([each.probabilities for each in views], axis=0)
    found = recordings["TABED"].steps[0]
    np.testing.assert_array_equal(found.draft_tokens[:, 0], mean.argmax(axis=1))
    assert np.abs(views[0].probabilities - views[1].probabilities).max() > 1e-4, "the frame makes a difference"
    assert 1.0 <= figures["TABED"]["tau"]["min"] <= figures["TABED"]["tau"]["max"] <= 5.0
    assert figures["TABED"]["forward_s"] > figures["TABED"]["batched_s"]


def test_a_longer_forward_and_prefill_take_their_share() -> None:
    at = draft_arms.scaled(ORIN, 1.5, 10.0, 4.0)
    assert at.draft_s == pytest.approx(0.108) and at.edge_prefill_s == pytest.approx(0.72)
    assert at.cloud_prefill_s == pytest.approx(0.06)


def test_the_command_prints_and_saves(
    few: None, tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    pair = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --max-tokens 6"
    flags = f"{pair} --count 2 --recording {tmp_path / 'recording.npz'} --save"
    assert draft_arms.main(flags.split()) == 0
    assert "TABED, half" in capsys.readouterr().out
    saved = json.loads((tmp_path / "draft_arms.json").read_text())
    assert set(saved["arms"]) == set(draft_arms.ARMS) and saved["arms"]["blind"]["times_cloud"]["go2"]["tuned"] > 0.0
    assert saved["arms"]["TABED"]["drafting"]["fast"].startswith("ngrams=off")
    assert draft_arms.main([*flags.split(), "--gamma", "0"]) == 2
    assert "--gamma 0" in capsys.readouterr().err
