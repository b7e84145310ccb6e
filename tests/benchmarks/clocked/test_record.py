"""Recorded facts say what the models say, and the check sets real and virtual runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clocked import Recording, Timings, __main__, check, decode, drafting
from benchmarks.clocked.models import FactsDraftModel, FactsEngine
from benchmarks.clocked.record import Models, record
from cloud_verifier.engine import VlmEngine
from cloud_verifier.work import VerifyRow
from evaluation.experiment.questions import questions
from evaluation.experiment.run import Question
from speculation.exits import ExitHeads, Head, Reliability
from speculation.profile import DeviceProfile
from speculation.vlm.load import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT

LIMIT = 12


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions("random", 2)


@pytest.fixture(scope="module")
def exits(target: Vlm) -> ExitHeads:
    """Exits whose weights are random, so that they are sometimes right; measured as sure or not."""
    heads = ExitHeads(target, (0, 2), rank=4)
    heads.set_reliability({layer: Reliability((0.0, 0.01, 1.0), (0.2, 0.7)) for layer in heads.layers})
    return heads


@pytest.fixture(scope="module")
def recording(target: Vlm, draft: Vlm, exits: ExitHeads, asked: list[Question]) -> Recording:
    return record(Models(target, draft, exits, None), asked, LIMIT, top=3)


def nothing(seconds: float) -> None: ...


def test_the_answers_are_the_targets(recording: Recording, target: Vlm, asked: list[Question]) -> None:
    session = VlmSession(target, 512)
    for facts, question in zip(recording.steps, asked, strict=True):
        greedy = session.greedy(question.prompt, question.jpeg, LIMIT)
        assert facts.tokens == tuple(token for token, _ in greedy)
        assert facts.image_bytes == len(question.jpeg)


def test_the_draft_says_what_the_draft_model_says(recording: Recording, draft: Vlm, asked: list[Question]) -> None:
    session, model = VlmSession(draft, 512), FactsDraftModel(recording, Timings(), nothing)
    for number, (facts, question) in enumerate(zip(recording.steps, asked, strict=True)):
        session.begin(question.prompt, question.jpeg)
        model.begin(question.prompt, recording.image(number))
        for token in facts.tokens:
            real, virtual = session.root_logits(), model.root_logits()
            assert int(real.argmax()) == int(virtual.argmax())
            softmax = np.exp(real - real.max()) / np.exp(real - real.max()).sum()
            assert np.exp(virtual.max()) == pytest.approx(softmax.max(), rel=1e-4)
            assert session.commit((), token) == model.commit((), token) == {}


def test_target_and_exits_say_what_the_engine_says(
    recording: Recording, target: Vlm, exits: ExitHeads, asked: list[Question]
) -> None:
    real = VlmEngine(target, 1, 512, exits, max_draft=16)
    virtual = FactsEngine(recording, Timings(), nothing)
    spoken = 0
    for number, (facts, question) in enumerate(zip(recording.steps, asked, strict=True)):
        for place in range(len(facts.tokens) - 3):
            tokens = (*facts.tokens[place : place + place % 3], (facts.tokens[place] + 1) % target.vocabulary)
            row = VerifyRow(0, tokens, tuple(range(ROOT, len(tokens) - 1)))
            for engine, jpeg in ((real, question.jpeg), (virtual, recording.image(number))):
                engine.prefill(0, engine.prepare(question.prompt, jpeg), facts.tokens[:place], LIMIT)  # type: ignore[attr-defined]
            for one, other in zip(real.verify([row]), virtual.verify([row]), strict=True):
                assert sorted(one.verdicts) == sorted(other.verdicts)
                for verdict in one.verdicts.values():
                    again = other.verdicts[0]
                    assert (verdict.path, verdict.token) == (again.path, again.token)
                    if one.layer < 3:
                        assert verdict.confidence == pytest.approx(again.confidence, rel=1e-4)
                        spoken += 1
    assert spoken > 20


def test_a_short_list_is_recorded_as_it_is_used(
    target: Vlm, draft: Vlm, exits: ExitHeads, asked: list[Question], recording: Recording
) -> None:
    ids = sorted(set(recording.steps[0].tokens) | {5, 6})
    heads = ExitHeads(target, (0, 2), rank=4)
    heads.set_short_list(ids)
    heads.use(Head.SHORT)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.5,)) for layer in heads.layers}, Head.SHORT)
    short = record(Models(target, draft, heads, None), asked[:1], LIMIT)
    assert short.short_list == frozenset(ids)
    said = short.steps[0].exit_tokens
    assert said is not None and set(said.ravel().tolist()) <= set(ids)


def test_every_mode_answers_as_the_recorded_target(recording: Recording) -> None:
    timings = Timings(draft_s=0.01, verify_s=0.1, one_way_s=0.02)
    for mode in ("cloud", "sd", "fsd"):
        results = decode(recording, timings, drafting(mode, recording))
        assert [result.tokens for result in results] == [facts.tokens for facts in recording.steps]


def test_the_edge_alone_answers_as_far_as_the_draft_is_right(recording: Recording) -> None:
    for result, facts in zip(decode(recording, Timings(), drafting("edge", recording)), recording.steps, strict=True):
        pairs = zip(facts.tokens, facts.draft_tokens[:, 0].tolist(), strict=True)
        right = next((place for place, (token, first) in enumerate(pairs) if token != first), len(facts.tokens))
        assert result.tokens[: right + 1] == (*facts.tokens[:right], *facts.draft_tokens[right : right + 1, 0].tolist())


def test_the_check_sets_medians_side_by_side(recording: Recording) -> None:
    profile = DeviceProfile("trial", 0.01, 0.1, 0.02)
    timings = Timings.of(profile, edge_prefill_s=0.03, cloud_prefill_s=0.05)
    real = {mode: decode(recording, timings, drafting(mode, recording)) for mode in ("cloud", "sd")}
    told = check.clocked_timings(profile, real)
    assert (told.edge_prefill_s, told.cloud_prefill_s) == pytest.approx((0.03, 0.05))
    assert replace(told, edge_prefill_s=0.03, cloud_prefill_s=0.05) == timings
    rows = check.agree(real, recording, timings, gamma=4)
    assert [row.error for row in rows] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert [row.different for row in rows] == [0, 0]
    assert [row.error_as_waited for row in rows] == pytest.approx([0.0, 0.0], abs=1e-9)
    slower = check.agree(real, recording, replace(timings, verify_s=0.2), gamma=4)
    assert min(row.error for row in slower) > 0.5
    late = check.agree(real, recording, replace(timings, verify_s=0.05), gamma=4)
    assert max(row.error for row in late) < -0.2
    assert [row.error_as_waited for row in late] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert "sd" in check.report(rows, timings)


def test_record_and_check_from_the_command_line(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --max-tokens 6 --guide never"
    out = tmp_path / "facts.npz"
    assert __main__.main(f"record {models} --count 2 --out {out}".split()) == 0
    assert len(Recording.load(out).steps) == 2
    flags = "--steps 1 --modes cloud,sd --within 1000"
    assert __main__.main(f"check {models} {flags}".split()) == 0
    assert "off by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("record --out facts.json", ".npz"),
        ("record --out facts.npz --count 0", "--count"),
        ("record --out facts.npz --target-model none", "none"),
        ("check --profile raw", "raw"),
        ("check --steps 0", "--steps"),
    ],
)
def test_bad_input_is_one_sentence(flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(flags.split()) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
