"""The engine on a tiny random model: a batch of drafts is judged as each session would be alone."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from cloud_verifier import engine as engine_module
from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine, find_exits
from cloud_verifier.interfaces import CapacityError, Row
from speculation.cancellation import Abandoned
from speculation.exits import ExitHeads, Head, Reliability
from speculation.language.grammar import Constraint, Grammars
from speculation.sampling import GREEDY, Coupled, SamplingScheme, Split, StepDraws
from speculation.sampling.rejection import Drawn
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, Grammar
from tests.cloud_verifier.prefills import prefill_at_once

CAPACITY = 160
KEY = 7
PROMPTS = ("find the silver bottle", "find the red chair near the wall", "look for the blue ball")


def jpeg(seed: int) -> bytes:
    """Return a small random image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def greedy(vlm: Vlm, prompt: str, image: bytes, count: int) -> list[int]:
    """Return the model's own answer, token by token."""
    session = VlmSession(vlm, CAPACITY)
    session.begin(prompt, image)
    answer: list[int] = []
    while len(answer) < count:
        token = int(np.argmax(session.root_logits()))
        answer.append(token)
        session.commit((), token)
    return answer


@pytest.fixture(scope="module")
def truths(target: Vlm) -> list[list[int]]:
    return [greedy(target, prompt, jpeg(row), 12) for row, prompt in enumerate(PROMPTS)]


def filled(target: Vlm, exits: ExitHeads | None = None) -> VlmEngine:
    engine = VlmEngine(target, len(PROMPTS), CAPACITY, exits, max_draft=16)
    for row, prompt in enumerate(PROMPTS):
        prefill_at_once(engine, row, engine.prepare(prompt, jpeg(row)), [], 20)
    return engine


def test_a_ragged_batch_of_trees_is_judged_like_each_session_alone(target: Vlm, truths: list[list[int]]) -> None:
    engine = filled(target)
    abandoned = engine.verify([Row(0, (3, 4), (ROOT, 0)), Row(2, (5,), (ROOT,))])
    next(abandoned)
    del abandoned  # it leaves no trace
    a, b, c = truths
    rows = [
        Row(0, tuple(a[:4]), (ROOT, 0, 1, 2)),
        Row(1, (), ()),
        #   a wrong branch first, the right one among its siblings, junk below
        Row(2, (c[0] ^ 1, c[0], 3, c[1], 5), (ROOT, ROOT, 0, 1, 3)),
    ]
    *_, last = engine.verify(rows)
    assert last.layer == target.num_layers - 1
    assert [last.verdicts[0].path, last.verdicts[0].token] == [(0, 1, 2, 3), a[4]]
    assert [last.verdicts[1].path, last.verdicts[1].token] == [(), b[0]]
    assert last.verdicts[2].path[:2] == (1, 3) and last.verdicts[2].token == c[len(last.verdicts[2].path)]


@pytest.mark.parametrize("committed", [0, 5])
def test_a_prefill_that_is_given_up_leaves_no_trace(target: Vlm, truths: list[list[int]], committed: int) -> None:
    """At its image, or between layers of a chunk; other rows and the next prefill are as before."""
    engine, known = filled(target), truths[1][:committed]
    inputs = engine.prepare(PROMPTS[1], jpeg(1))
    tokens = engine.begin(1, inputs, known, 20)
    with pytest.raises(Abandoned):
        engine.encode(1, lambda: True)
    engine.encode(1, lambda: False)
    running = engine.verify([Row(1, chunk=tokens)])
    next(running)
    del running
    *_, last = engine.verify([Row(0, (), ()), Row(2, (), ())])
    assert [last.verdicts[row].token for row in (0, 2)] == [truths[0][0], truths[2][0]]
    prefill_at_once(engine, 1, inputs, known, 20)
    *_, last = engine.verify([Row(1, (), ())])
    assert last.verdicts[1].token == truths[1][committed]


@pytest.fixture(scope="module")
def sampled(target: Vlm) -> dict[tuple[int, SamplingScheme], list[int]]:
    """What the model alone answers to each prompt, greedy and sampling."""
    session = VlmSession(target, CAPACITY)
    return {
        (row, how): [token for token, _ in session.sampled(prompt, jpeg(row), 16, how, KEY)]
        for row, prompt in enumerate(PROMPTS)
        for how in (GREEDY, Coupled(1.0), Coupled(0.8, 20))
    }


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_chunking_beside_any_rows_answers_as_each_model_alone(
    target: Vlm, sampled: dict[tuple[int, SamplingScheme], list[int]], seed: int
) -> None:
    """Three steps begin, some from the middle of their answer; greedy or sampling, they verify what is half right,
    some with the last chunk of their prefill."""
    random = Random(seed)
    engine = VlmEngine(target, 3, CAPACITY, ExitHeads(target, (0, 2), rank=4), max_draft=16)
    asked = [random.choice([each for each in sampled if each[0] == row]) for row in range(3)]
    alone = [sampled[each] for each in asked]
    answers = [list(alone[row][: random.randint(0, 5)]) for row in range(3)]
    left = [
        engine.begin(row, engine.prepare(prompt, jpeg(row)), answers[row], 20) for row, prompt in enumerate(PROMPTS)
    ]
    for row in range(3):
        engine.encode(row)
    while any(len(answer) < 8 for answer in answers):
        rows = []
        for row in random.sample(range(3), random.randint(1, 3)):
            chunk = random.choice([left[row], random.randint(1, left[row])]) if left[row] else 0
            ends = 0 < chunk == left[row] and random.random() < 0.7
            if chunk and not ends:
                rows.append(Row(row, chunk=chunk))
            elif len(answers[row]) < 8:
                tokens = (*alone[row][len(answers[row]) :][: random.randint(0, 2)], 7)
                draws = StepDraws(KEY, len(answers[row]))
                parents, scheme = tuple(range(-1, len(tokens) - 1)), asked[row][1]
                rows.append(Row(row, tokens, parents, True, scheme, draws, chunk=chunk, ends_prefill=ends))
        outputs = list(engine.verify(rows)) if rows else []
        for fed in (row for row in rows if row.chunk):
            left[fed.index] -= fed.chunk
            assert fed.judged or all(fed.index not in output.verdicts for output in outputs)
        for judged in (row for row in rows if row.judged):
            verdict = outputs[-1].verdicts[judged.index]
            engine.keep(judged.index, verdict.path, verdict.token)
            answers[judged.index] += [*(judged.tokens[node] for node in verdict.path), verdict.token]
    assert answers == [alone[row][: len(answer)] for row, answer in enumerate(answers)]


def test_exits_give_verdicts_at_their_layers_to_rows_that_ask(target: Vlm, truths: list[list[int]]) -> None:
    heads = ExitHeads(target, (0, 2), rank=4)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.25,)) for layer in heads.layers})
    engine = filled(target, heads)
    assert engine.model.exit_layers == (0, 2)
    rows = [Row(0, tuple(truths[0][:2]), (ROOT, 0)), Row(1, (), (), exits=False), Row(2, (), ())]
    outputs = list(engine.verify(rows))
    assert [sorted(output.verdicts) for output in outputs] == [[0, 2], [], [0, 2], [0, 1, 2]]
    raw = {v.confidence for output in outputs[:-1] for v in output.verdicts.values()}
    assert 0.25 not in raw, "calibrating is not the engine's part"
    assert {layer: rates.rate(0.9) for layer, rates in engine.model.reliability.items()} == {0: 0.25, 2: 0.25}
    alone = filled(target, heads)
    for output, single in zip(outputs, alone.verify(rows[:1]), strict=True):
        if single.verdicts:
            assert output.verdicts[0].token == single.verdicts[0].token
            assert output.verdicts[0].confidence == pytest.approx(single.verdicts[0].confidence)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_row_that_cannot_be_judged_costs_itself_and_no_other(
    target: Vlm, truths: list[list[int]], on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of one row that are not finite, and evidence of another that does not fit its draft."""
    engine = VlmEngine(target, len(PROMPTS), CAPACITY, ExitHeads(target, (0,), rank=4), 16)
    engine.draws_on_device = on_device
    for index, prompt in enumerate(PROMPTS):
        prefill_at_once(engine, index, engine.prepare(prompt, jpeg(index)), (), 20)
    split = Split(1.0)
    rows = [
        Row(0, (3,), (ROOT,)),
        Row(1, (4, 5), (ROOT, 0), sampling=split, digest=bytes(8), evidence=(Drawn(0.5),)),
        Row(2, tuple(truths[2][:2]), (ROOT, 0)),
    ]
    real = engine_module.final_logits

    def broken(vlm: Vlm, hidden: Tensor) -> Tensor:
        logits = real(vlm, hidden)
        logits[0] = float("nan")  # the first node of row 0
        return logits

    monkeypatch.setattr(engine_module, "final_logits", broken)
    first, *_, last = engine.verify(rows)
    assert sorted(first.verdicts) == [0, 2], "an exit that fails on a row sends nothing, and ends nothing"
    assert sorted(last.failures) == [0, 1] and sorted(last.verdicts) == [2]
    assert "not finite" in str(last.failures[0]) and "judges chains" in str(last.failures[1])
    assert (last.verdicts[2].path, last.verdicts[2].token) == ((0, 1), truths[2][2])
    monkeypatch.undo()
    *_, last = engine.verify([Row(0, tuple(truths[0][:2]), (ROOT, 0))])
    assert (last.verdicts[0].path, last.verdicts[0].token) == ((0, 1), truths[0][2])


def test_what_cannot_be_prefilled_is_an_error(target: Vlm) -> None:
    engine = VlmEngine(target, 1, 64, max_draft=16)
    with pytest.raises(CapacityError, match=r"an answer of 60 and a draft of 16 need \d+ cache slots.*--capacity"):
        prefill_at_once(engine, 0, engine.prepare(PROMPTS[0], jpeg(0)), (), 60)
    with pytest.raises(ValueError, match="does not decode as JPEG"):
        prefill_at_once(engine, 0, engine.prepare(PROMPTS[0], b"not an image"), (), 8)


def test_exits_beside_the_model_are_used_where_they_fit(
    target: Vlm, tiny_draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for model in ("target", "other"):
        (tmp_path / model).mkdir()
    heads = ExitHeads(target, (1,), rank=4)
    heads.set_reliability({1: Reliability((0.0, 1.0), (0.25,))})
    config = ServerConfig.of(tmp_path / "target")
    assert find_exits(config, target) is None
    heads.save(tmp_path / "exits")
    found = find_exits(config, target)
    assert found is not None and found.layers == (1,)
    other = load_vlm(tiny_draft)
    assert find_exits(ServerConfig.of(tmp_path / "other"), other) is None
    assert "no early exits" in caplog.text and other.fingerprint in caplog.text
    with pytest.raises(ModelFolderError, match="belong to target"):
        find_exits(ServerConfig.of(tmp_path / "other", exits=tmp_path / "exits"), other)


def test_a_short_list_changes_early_verdicts_only(target: Vlm, truths: list[list[int]]) -> None:
    """Ten turns of drafts that are right for a while: the same commits, and early tokens of the list alone."""
    heads = ExitHeads(target, (0, 2), rank=4)
    ids = sorted({token for truth in truths[:2] for token in truth})
    heads.set_short_list(ids)
    commits_by: dict[Head, list[tuple[int, ...]]] = {}
    early: dict[Head, set[int]] = {}
    for head in Head:
        heads.use(head)
        engine = filled(target, heads)
        commits, tokens = [], set()
        for turn in range(10):
            rows = []
            for row, truth in enumerate(truths):
                drafted = (*truth[turn : turn + turn % 4], 9)
                rows.append(Row(row, drafted, tuple(range(-1, len(drafted) - 1))))
            outputs = list(engine.verify(rows))
            for row, verdict in outputs[-1].verdicts.items():
                commits.append((row, *verdict.path, verdict.token))
                engine.keep(row, verdict.path[:0], truths[row][turn])
            tokens |= {verdict.token for output in outputs[:-1] for verdict in output.verdicts.values()}
        commits_by[head], early[head] = commits, tokens
    assert commits_by[Head.FULL] == commits_by[Head.SHORT]
    assert early[Head.SHORT] and early[Head.SHORT] <= set(ids)
    assert not early[Head.FULL] <= set(ids)


def test_a_grammar_masks_alike_on_host_and_device(target: Vlm) -> None:
    """A chain that leaves the grammar at its second token: the verdict ends there, wherever tokens are drawn."""
    known = Grammars(target.tokenizer, target.vocabulary).of(Grammar.ACTION_FIRST, target.eos)
    first = known.start(20)
    allowed = np.flatnonzero(known.allowed(first).mask)
    rows = [
        Row(0, (token, target.eos[0]), (ROOT, 0), constraint=Constraint(known, first), sampling=how)
        for token in allowed.tolist()
        for how in (GREEDY, Coupled(0.8))
    ]
    found = []
    for on_device in (False, True):
        engine = VlmEngine(target, 1, 256)
        engine.draws_on_device = on_device
        prefill_at_once(engine, 0, engine.prepare(PROMPTS[0], jpeg(0)), (), 20)
        found.append([[*engine.verify([row])][-1].verdicts[0] for row in rows])
    assert [(each.path, each.token) for each in found[0]] == [(each.path, each.token) for each in found[1]]
    for row, verdict in zip(rows, found[0], strict=True):
        assert len(verdict.path) < 2
        tokens = [*(row.tokens[node] for node in verdict.path), verdict.token]
        assert known.after(tokens, 20) is not None
    assert any(verdict.path for verdict in found[0])
