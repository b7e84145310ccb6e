"""Recordings: what the virtual models make of them, their file, and synthetic ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.interfaces import Row
from speculation.pass_cost import Load, PassCost
from speculation.sampling import Greedy
from speculation.wire import ROOT
from tests.cloud_verifier.prefills import prefill_at_once
from vlm_nav_evaluation.virtual_time.models import RecordedEngine
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording, Table
from vlm_nav_evaluation.virtual_time.synthetic import EOS, VOCABULARY, Synthetic
from vlm_nav_evaluation.virtual_time.timings import Timings


def nothing(seconds: float) -> None: ...


def recorded(seed: int = 0, steps: int = 2, n: int = 12, vocabulary: int = 40) -> Recording:
    """Return a random recording: a draft that is often right, two exits."""
    random = np.random.default_rng(seed)

    def step(number: int) -> RecordedStep:
        tokens = random.integers(2, vocabulary, n)
        others = np.stack([random.permutation(vocabulary)[:4] for _ in range(n)])
        others[:, 0] = np.where(random.random(n) < 0.7, tokens, others[:, 0])
        for row in others:
            row[1:] = [each for each in random.permutation(vocabulary) if each != row[0]][:3]
        chances = np.sort(random.dirichlet(np.ones(5), n), axis=1)[:, :0:-1]
        predicted = np.where(random.random((n, 2)) < 0.6, tokens[:, None], random.integers(2, vocabulary, (n, 2)))
        return RecordedStep(
            f"prompt {number}",
            100 + number,
            tuple(tokens.tolist()),
            others.astype(np.int32),
            chances.astype(np.float32),
            random.random((n, 3)).astype(np.float32),
            predicted.astype(np.int32),
            random.random((n, 2)).astype(np.float32),
        )

    return Recording(
        tuple(step(number) for number in range(steps)), vocabulary, (1,), 4, (0, 2), 20, 0.3,
        {0: Table((0.0, 0.5, 1.0), (0.1, 0.8))}, frozenset(range(2, 30)), {"target": "t"},
    )  # fmt: skip


def test_a_recording_survives_its_file(tmp_path: Path) -> None:
    recording = recorded()
    recording.save(tmp_path / "recording.npz")
    again = Recording.load(tmp_path / "recording.npz")
    assert replace(again, steps=recording.steps) == recording
    for one, other in zip(recording.steps, again.steps, strict=True):
        for name, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(other, name))
    assert not list(tmp_path.glob("*.part"))


def test_files_that_are_no_recording_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        Recording.load(tmp_path / "none.npz")
    recorded().save(tmp_path / "whole.npz")
    for name, data in (("text.npz", b"text"), ("cut.npz", (tmp_path / "whole.npz").read_bytes()[:-300])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} is no recording"):
            Recording.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match="is no recording"):
        Recording.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="follow from their settings"):
        Synthetic(tokens=3).draw(1).save(tmp_path / "synthetic.npz")


@settings(max_examples=50)
@given(data=st.data(), seed=st.integers(0, 50))
def test_drafts_are_judged_as_the_rule_judges_them(data: st.DataObject, seed: int) -> None:
    """Target and exits: a walk over a recording gives what `Greedy` gives on logits of the same predictions."""
    recording = replace(recorded(seed), reliability={}, short_list=None)
    step = recording.steps[0]
    assert step.exit_tokens is not None
    place = data.draw(st.integers(0, 11))
    likely = [*step.tokens[place:], *step.exit_tokens[place:].ravel().tolist()]
    tokens = data.draw(st.lists(st.sampled_from(likely), max_size=8))
    parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))]
    engine = RecordedEngine(recording, Timings(), nothing)
    prefill_at_once(engine, 0, engine.prepare("prompt 0", recording.image(0)), step.tokens[:place], 20)
    outputs = {output.layer: output.verdicts for output in engine.verify([Row(0, tuple(tokens), tuple(parents))])}
    assert sorted(layer for layer, verdicts in outputs.items() if verdicts) == [0, 2, 3]
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    for layer, predicted in ((3, np.array(step.tokens)), (0, step.exit_tokens[:, 0]), (2, step.exit_tokens[:, 1])):
        logits = np.zeros((len(tokens) + 1, 60))
        for row, path in enumerate(paths):
            at = place + len(path)
            on_path = tuple(path) == step.tokens[place:at] and at < len(step.tokens)
            logits[row, int(predicted[at]) if on_path else 50] = 9.0
        expected = Greedy().judge(tokens, parents, logits)
        verdict = outputs[layer][0]
        end = place + len(expected.path)
        if expected.token != 50 and end < len(step.tokens):
            assert (verdict.path, verdict.token) == (expected.path, expected.token)
        else:  # the rule's verdict ends off the path, where the walk may only go on along a hash
            assert verdict.path[: len(expected.path)] == expected.path


COST = PassCost(token_s=0.001, interaction_s=1e-6, cached_s=1e-6, constant_s=0.02)


@settings(max_examples=50)
@given(
    cost=st.sampled_from([None, COST]),
    sizes=st.lists(st.integers(1, 60), max_size=6),
    prompt=st.sampled_from([1, 120]),
    beside=st.booleans(),
)
def test_the_chunks_of_a_prefill_take_its_time_together(
    cost: PassCost | None, sizes: list[int], prompt: int, beside: bool
) -> None:
    """However it is cut, alone or beside a decoding robot; with a profile, each chunk what the profile says."""
    recording, spent = recorded(), list[float]()
    timings = Timings(verify_s=0.1, cloud_prefill_s=2.0, prompt_tokens=prompt, cost=cost)
    cost = timings.pass_cost
    engine = RecordedEngine(recording, timings, spent.append)
    prefill_at_once(engine, 1, engine.prepare("prompt 1", recording.image(1)), (), 20)
    spent.clear()
    tokens = left = engine.begin(0, engine.prepare("prompt 0", recording.image(0)), (), 20)
    assert tokens == max(0, prompt - 1)
    engine.encode(0)
    expected = 0.0 if tokens and cost is None else 2.0 - (cost.seconds(Load.row(tokens)) if tokens and cost else 0.0)
    assert sum(spent) == pytest.approx(expected)
    while left:
        size = min(left, sizes.pop() if sizes else left)
        rows = [Row(0, chunk=size, cached=tokens - left), *[Row(1)] * beside]
        *_, last = engine.verify(rows)
        assert set(last.verdicts) == ({1} if beside else set())
        load = Load.total(row.load for row in rows)
        expected += cost.seconds(load) if cost is not None else 2.0 * size / tokens + 0.1 * beside
        left -= size
    assert sum(spent) == pytest.approx(expected)


def test_a_synthetic_recording_matches_its_settings() -> None:
    source = Synthetic(tokens=500, second=0.5, sharpness=0.7)
    recording = source.draw(20)
    right, saved, agrees, first = [], [], [], []
    for step in recording.steps:
        tokens = np.array(step.tokens)
        assert step.agrees is not None and step.tokens[-1] == EOS
        hit = step.draft_tokens[:, 0] == tokens
        right.append(hit)
        saved.append((step.draft_tokens[:, 1] == tokens)[~hit])
        agrees.append(step.agrees.any(axis=1))
        first.append(step.agrees.argmax(axis=1)[step.agrees.any(axis=1)])
        assert (np.diff(step.agrees.astype(int), axis=1) >= 0).all()
    assert np.mean(right) == pytest.approx(0.727, abs=0.02)
    assert np.concatenate(saved).mean() == pytest.approx(0.5, abs=0.03)
    assert 1.0 - np.mean(agrees) == pytest.approx(0.556, abs=0.02)
    assert np.concatenate(first).mean() == pytest.approx(8.0, abs=0.1)
    chances = np.concatenate([step.acceptance[:, 0] for step in recording.steps])
    hits = np.concatenate(right)
    for level in np.unique(chances):
        assert hits[chances == level].mean() == pytest.approx(level, abs=0.03)
    assert recording.vocabulary == VOCABULARY


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"miss": 1.2}, "miss"),
        ({"tokens": 0}, "tokens"),
        ({"exits": (5, 3)}, "exits"),
        ({"mean_exit": 27.0}, "mean_exit"),
    ],
)
def test_a_source_that_cannot_be_is_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Synthetic(**wrong)  # type: ignore[arg-type]
