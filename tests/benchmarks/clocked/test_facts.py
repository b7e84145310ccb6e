"""Facts: what the virtual models make of them, their file, and how they are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.clocked.facts import Facts, Recording, Table
from benchmarks.clocked.models import FactsDraftModel, FactsEngine
from benchmarks.clocked.record import compact
from benchmarks.clocked.synthetic import EOS, FIRST_WORD, VOCABULARY, Synthetic, tilted
from benchmarks.clocked.timeline import Inbox, Timeline
from benchmarks.clocked.timings import Timings
from cloud_verifier.work import VerifyRow
from edge_drafter.grower import propose
from edge_drafter.model import Abandoned
from speculation.distributions import Distributions
from speculation.sampling import Greedy
from speculation.wire import ROOT


def nothing(seconds: float) -> None: ...


def recorded(seed: int = 0, steps: int = 2, n: int = 12, vocabulary: int = 40) -> Recording:
    """Return random facts of the recorded kind: a draft that is often right, two exits."""
    dice = np.random.default_rng(seed)

    def step(number: int) -> Facts:
        tokens = dice.integers(2, vocabulary, n)
        others = np.stack([dice.permutation(vocabulary)[:4] for _ in range(n)])
        others[:, 0] = np.where(dice.random(n) < 0.7, tokens, others[:, 0])
        for row in others:
            row[1:] = [each for each in dice.permutation(vocabulary) if each != row[0]][:3]
        chances = np.sort(dice.dirichlet(np.ones(5), n), axis=1)[:, :0:-1]
        said = np.where(dice.random((n, 2)) < 0.6, tokens[:, None], dice.integers(2, vocabulary, (n, 2)))
        return Facts(
            f"prompt {number}",
            100 + number,
            tuple(tokens.tolist()),
            others.astype(np.int32),
            chances.astype(np.float32),
            dice.random((n, 3)).astype(np.float32),
            said.astype(np.int32),
            dice.random((n, 2)).astype(np.float32),
        )

    return Recording(
        tuple(step(number) for number in range(steps)), vocabulary, (1,), 4, (0, 2), 20, 0.3,
        {0: Table((0.0, 0.5, 1.0), (0.1, 0.8))}, frozenset(range(2, 30)), {"target": "t"},
    )  # fmt: skip


def test_facts_survive_their_file(tmp_path: Path) -> None:
    recording = recorded()
    recording.save(tmp_path / "facts.npz")
    again = Recording.load(tmp_path / "facts.npz")
    assert replace(again, steps=recording.steps) == recording
    for one, other in zip(recording.steps, again.steps, strict=True):
        for name, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(other, name))
    assert not list(tmp_path.glob("*.part"))


def test_files_that_hold_no_facts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        Recording.load(tmp_path / "none.npz")
    recorded().save(tmp_path / "whole.npz")
    cut = (tmp_path / "whole.npz").read_bytes()[:-300]
    for name, data in (("text.npz", b"text"), ("empty.npz", b""), ("cut.npz", cut)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} holds no facts"):
            Recording.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match="holds no facts"):
        Recording.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="drawn again"):
        Synthetic(tokens=3).draw(1).save(tmp_path / "drawn.npz")


def test_the_drafts_rows_have_the_recorded_probabilities() -> None:
    recording = recorded()
    facts = recording.steps[1]
    model = FactsDraftModel(recording, Timings(), nothing)
    model.begin(facts.prompt, recording.image(1))
    rows = [model.root_logits(), *model.extend(facts.tokens[:-1], range(-1, len(facts.tokens) - 2))]
    for place, row in enumerate(rows):
        softmax = np.exp(row) / np.exp(row).sum()
        np.testing.assert_allclose(softmax[facts.draft_tokens[place]], facts.draft_chances[place], rtol=1e-5)
        assert softmax[-1] < 1e-20
        ((said,),) = propose(Distributions(row[None]), [2], [()], model.predictor)  # type: ignore[arg-type]
        assert said == (facts.draft_tokens[place, 0], pytest.approx(float(facts.chances[place, 1])))
        assert model.predictor.chance(row, 9) == pytest.approx(float(facts.chances[place, 2]))


def test_forwards_take_their_time_and_nothing_is_computed_twice() -> None:
    recording = recorded()
    tokens = recording.steps[0].tokens
    spent: list[float] = []
    model = FactsDraftModel(recording, Timings(draft_s=1.0, draft_leaf=0.25, edge_prefill_s=5.0), spent.append)
    model.begin("prompt 0", recording.image(0))
    model.root_logits()
    model.root_logits()
    model.extend(tokens[:2], (ROOT, 0))
    assert model.commit((0,), tokens[1]) == {1: ROOT}  # it was fed, so its logits are known
    model.root_logits()
    assert model.commit((), tokens[2]) == {}
    model.extend([9, 8], (ROOT, ROOT))  # the root rides in front
    assert spent == [5.0, 1.0, 1.25, 1.5]


def test_a_useless_forward_ends_with_the_layer_in_which_that_was_heard() -> None:
    """Asked after every layer, or only where mail came: the same moment."""
    ends = []
    for listens in (False, True):
        timeline = Timeline()
        inbox: Inbox[str] = Inbox(timeline)
        recording = recorded()

        def listen(seconds: float, timeline: Timeline = timeline, inbox: Inbox[str] = inbox) -> float:
            before = timeline.now
            inbox.wait(seconds)
            return timeline.now - before

        model = FactsDraftModel(recording, Timings(draft_s=2.8), timeline.sleep, *([listen] if listens else []))
        timeline.at(0.25, lambda inbox=inbox: inbox.put("nothing"))  # type: ignore[misc]
        timeline.at(1.23, lambda inbox=inbox: inbox.put("stop"))  # type: ignore[misc]

        def draft(model: FactsDraftModel = model, inbox: Inbox[str] = inbox, recording: Recording = recording) -> None:
            model.begin("prompt 0", recording.image(0))
            with pytest.raises(Abandoned):
                model.root_logits(lambda: inbox.take() == "stop")

        timeline.run([draft])
        ends.append(timeline.now)
    assert ends == pytest.approx([1.3, 1.3])


def test_survivors_are_renamed_as_a_session_does_it() -> None:
    recording = recorded()
    tokens = recording.steps[0].tokens
    model = FactsDraftModel(recording, Timings(), nothing)
    model.begin("prompt 0", recording.image(0))
    model.extend([tokens[0], 3, tokens[1], 5, tokens[2]], (ROOT, 0, 0, 1, 2))
    assert model.commit((0,), tokens[1]) == {2: ROOT, 4: 0}
    row = model.extend([tokens[3]], (0,))[0]
    assert int(row.argmax()) == recording.steps[0].draft_tokens[4, 0]


def test_off_the_answers_path_the_confidence_stays_and_the_tokens_are_noise() -> None:
    recording = recorded(n=12)
    facts = recording.steps[0]
    wrong = next(token for token in range(2, 40) if token != facts.tokens[0])
    rows = []
    for _ in range(2):
        model = FactsDraftModel(recording, Timings(), nothing)
        model.begin("prompt 0", recording.image(0))
        rows.append(model.extend([wrong, facts.tokens[1]], (ROOT, 0)))
    np.testing.assert_array_equal(rows[0], rows[1])
    for place, row in enumerate(rows[0], start=1):
        softmax = np.exp(row) / np.exp(row).sum()
        assert softmax.max() == pytest.approx(float(facts.draft_chances[place, 0]), rel=1e-5)
        assert model.predictor.chance(row, 1) == pytest.approx(float(facts.chances[place, 0]))


@given(data=st.data(), seed=st.integers(0, 50))
def test_drafts_are_judged_as_the_rule_judges_them(data: st.DataObject, seed: int) -> None:
    """Target and exits: a walk over facts says what `Greedy` says about logits that say the same."""
    recording = replace(recorded(seed), reliability={}, short_list=None)
    facts = recording.steps[0]
    assert facts.exit_tokens is not None
    place = data.draw(st.integers(0, 11))
    likely = [*facts.tokens[place:], *facts.exit_tokens[place:].ravel().tolist()]
    tokens = data.draw(st.lists(st.sampled_from(likely), max_size=8))
    parents = [data.draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))]
    engine = FactsEngine(recording, Timings(), nothing)
    engine.prefill(0, engine.prepare("prompt 0", recording.image(0)), facts.tokens[:place], 20)
    outputs = {output.layer: output.verdicts for output in engine.verify([VerifyRow(0, tuple(tokens), tuple(parents))])}
    assert sorted(layer for layer, verdicts in outputs.items() if verdicts) == [0, 2, 3]
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    for layer, said in ((3, np.array(facts.tokens)), (0, facts.exit_tokens[:, 0]), (2, facts.exit_tokens[:, 1])):
        logits = np.zeros((len(tokens) + 1, 60))
        for row, path in enumerate(paths):
            at = place + len(path)
            on_path = tuple(path) == facts.tokens[place:at] and at < len(facts.tokens)
            logits[row, int(said[at]) if on_path else 50] = 9.0
        expected = Greedy().judge(tokens, parents, logits)
        verdict = outputs[layer][0]
        end = place + len(expected.path)
        if expected.token != 50 and end < len(facts.tokens):
            assert (verdict.path, verdict.token) == (expected.path, expected.token)
        else:  # the rule's verdict ends off the path, where the walk may only go on along a hash
            assert verdict.path[: len(expected.path)] == expected.path


def test_an_exit_is_calibrated_and_silent_as_in_production() -> None:
    recording = recorded()
    facts = recording.steps[0]
    assert facts.exit_chances is not None
    engine = FactsEngine(recording, Timings(), nothing)
    engine.prefill(0, engine.prepare("prompt 0", recording.image(0)), (), 20)
    outside = VerifyRow(0, (35,), (ROOT,))
    silent = [output.verdicts for output in engine.verify([outside])]
    assert [bool(verdicts) for verdicts in silent] == [False, False, False, True]
    spoken = next(iter(engine.verify([VerifyRow(0, (), ())]))).verdicts[0]
    assert spoken.confidence == (0.8 if facts.exit_chances[0, 0] >= 0.5 else 0.1)
    assert all(not output.verdicts for output in list(engine.verify([VerifyRow(0, (), (), exits=False)]))[:-1])


def test_few_of_many_tokens_are_kept_under_new_numbers() -> None:
    recording = recorded(vocabulary=40)
    small = compact(recording)
    assert small.vocabulary < 600
    for one, other in zip(recording.steps, small.steps, strict=True):
        same = [token == first for token, first in zip(one.tokens, one.draft_tokens[:, 0].tolist(), strict=True)]
        also = [token == first for token, first in zip(other.tokens, other.draft_tokens[:, 0].tolist(), strict=True)]
        assert same == also
        assert min(other.tokens) >= FIRST_WORD
    assert len(small.eos) == 1


def test_drawn_facts_match_what_was_asked() -> None:
    source = Synthetic(tokens=500, second=0.5, sharpness=0.7)
    recording = source.draw(20)
    right, saved, agrees, first = [], [], [], []
    for facts in recording.steps:
        tokens = np.array(facts.tokens)
        assert facts.agrees is not None and facts.tokens[-1] == EOS
        hit = facts.draft_tokens[:, 0] == tokens
        right.append(hit)
        saved.append((facts.draft_tokens[:, 1] == tokens)[~hit])
        agrees.append(facts.agrees.any(axis=1))
        first.append(facts.agrees.argmax(axis=1)[facts.agrees.any(axis=1)])
        assert (np.diff(facts.agrees.astype(int), axis=1) >= 0).all()
    assert np.mean(right) == pytest.approx(0.727, abs=0.02)
    assert np.concatenate(saved).mean() == pytest.approx(0.5, abs=0.03)
    assert 1.0 - np.mean(agrees) == pytest.approx(0.556, abs=0.02)
    assert np.concatenate(first).mean() == pytest.approx(8.0, abs=0.1)
    chances = np.concatenate([facts.chances[:, 0] for facts in recording.steps])
    hits = np.concatenate(right)
    for level in np.unique(chances):
        assert hits[chances == level].mean() == pytest.approx(level, abs=0.03)
    assert recording.vocabulary == VOCABULARY


def test_exits_of_a_drawn_source_are_calibrated() -> None:
    recording = Synthetic(tokens=500, layers=10, exits=(2, 5, 6), mean_exit=4.0, exit_sharpness=0.8).draw(20)
    agrees = np.concatenate([facts.agrees for facts in recording.steps if facts.agrees is not None])
    told = np.concatenate([facts.confidences for facts in recording.steps if facts.confidences is not None])
    for exit in range(3):
        for level in np.unique(told[:, exit]):
            chosen = told[:, exit] == level
            assert agrees[chosen, exit].mean() == pytest.approx(level, abs=0.03)


def test_wrong_exits_name_as_many_things_as_they_are_asked_to() -> None:
    def named(variety: float) -> set[int]:
        recording = Synthetic(tokens=4, miss=1.0, variety=variety).draw(1)
        engine = FactsEngine(recording, Timings(), nothing)
        engine.prefill(0, engine.prepare("", recording.image(0)), (), 4)
        outputs = list(engine.verify([VerifyRow(0, (), ())]))[:-1]
        return {output.verdicts[0].token for output in outputs if 0 in output.verdicts}

    target = Synthetic(tokens=4).draw(1).steps[0].tokens[0]
    assert len(named(0.0)) == 1 and len(named(1.0)) > 20
    assert target not in named(0.0) | named(1.0)
    # A setting that is off draws nothing: older sources stay what they were.
    one, other = (Synthetic(tokens=50, variety=variety).draw(1).steps[0] for variety in (0.0, 0.5))
    assert one.wrongs is None and one.tokens == other.tokens and np.array_equal(one.agrees, other.agrees)  # type: ignore[arg-type]


def test_per_place_acceptance_and_the_same_draw_twice() -> None:
    source = Synthetic(tokens=6, acceptance=(1.0, 0.0))
    one, other = source.draw(3), source.draw(3)
    for facts, again in zip(one.steps, other.steps, strict=True):
        assert (facts.draft_tokens[:, 0] == np.array(facts.tokens)).tolist() == [True, False] * 3
        np.testing.assert_array_equal(facts.draft_tokens, again.draft_tokens)


@pytest.mark.parametrize(("layers", "mean"), [(tuple(range(27)), 8.0), ((2, 5, 6), 5.5), ((3,), 3.0), ((0, 26), 1.0)])
def test_the_tilt_finds_the_mean(layers: tuple[int, ...], mean: float) -> None:
    weights = tilted(layers, mean)
    assert weights.sum() == pytest.approx(1.0)
    assert float(weights @ np.array(layers)) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"miss": 1.2}, "miss"),
        ({"acceptance": -0.1}, "acceptance"),
        ({"tokens": 0}, "tokens"),
        ({"exits": (5, 3)}, "exits"),
        ({"exits": (3, 27)}, "exits"),
        ({"mean_exit": 27.0}, "mean_exit"),
    ],
)
def test_a_source_that_cannot_be_is_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Synthetic(**wrong)  # type: ignore[arg-type]
