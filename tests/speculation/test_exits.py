"""Exits read the frozen target's own head, train nothing else, and belong to one target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculation.exits import ExitFiles, ExitHeads, Head, Reliability, measure_reliability
from speculation.sampling import Greedy
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward_layers, prefill
from speculation.vlm.inputs import prepare
from speculation.vlm.load import ModelFolderError
from speculation.vlm.model import Vlm
from tests.models import frame, scratch_inputs
from tests.speculation.files import edit

TABLE = Reliability((0.0, 0.5, 1.0), (0.25, 0.75))


def trained(vlm: Vlm, seed: int = 0) -> ExitHeads:
    """Return exits whose adapters are no identity, with tables."""
    heads = ExitHeads(vlm, [0, 2], rank=4)
    torch.manual_seed(seed)
    for weight in heads.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    heads.set_reliability(dict.fromkeys(heads.layers, TABLE))
    return heads


@pytest.fixture
def folder(target: Vlm, tmp_path: Path) -> Path:
    trained(target).save(tmp_path / "exits")
    return tmp_path / "exits"


def test_untrained_exit_is_the_logit_lens_of_hidden_states(target: Vlm) -> None:
    heads = ExitHeads(target, [0, 1, 2], rank=4)
    inputs = prepare(target, "find the silver bottle", frame(0))
    states = target.model(**scratch_inputs(target, inputs, [7, 8]), use_cache=False, output_hidden_states=True)
    cache = KVCache(target, 1, 64)
    root = prefill(target, cache, 0, inputs)
    for output in forward_layers(target, cache, [draft_chunk(cache, 0, root, [7, 8], [-1, 0])]):
        if output.layer in heads.layers:
            state = states.hidden_states[output.layer + 1][0, -3:]
            lens = target.model.lm_head(target.text.norm(state))[:, : target.vocabulary]
            torch.testing.assert_close(heads.logits(output.layer, output.hidden[0]), lens, rtol=0, atol=1e-9)


def test_files_give_the_same_exits_frozen(target: Vlm, folder: Path) -> None:
    again, heads = ExitHeads.load(folder, target), trained(target)
    hidden = torch.randn(2, target.hidden_size, dtype=target.dtype)
    assert again.layers == (0, 2)
    for layer in again.layers:
        torch.testing.assert_close(again.logits(layer, hidden), heads.logits(layer, hidden), rtol=0, atol=0)
        assert again.reliability(layer, 0.7) == 0.75
    assert not any(weight.requires_grad for weight in again.parameters())


def test_another_target_is_refused(draft: Vlm, folder: Path, target: Vlm) -> None:
    sentence = f"belong to target {target.fingerprint}, the loaded target is {draft.fingerprint}"
    with pytest.raises(ModelFolderError, match=sentence):
        ExitHeads.load(folder, draft)


def edited(**values: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder / "exits.json", **values)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "exits.json").unlink(), "has no exits.json; train exits"),
        (lambda folder: (folder / "exits.safetensors").unlink(), "has no exits.safetensors; train exits"),
        (
            lambda folder: (folder / "exits.json").write_text("{"),
            "exits.json: Input data was truncated",
        ),
        (lambda folder: (folder / "exits.safetensors").write_text("version"), "do not load"),
        (edited(format=3), r"Invalid enum value 3 - at `\$.format`; train them again"),
        (edited(wings=2), "unknown field `wings`"),
        (edited(rank="four"), r"Expected `int`, got `str` - at `\$.rank`"),
        (edited(rank=5), "do not load"),
        (edited(layers=[0, 9]), r"must be in 0\.\.2"),
        (edited(reliability={}), "do not load"),
        (edited(reliability={"0": {"edges": [0, 1], "agreement": [2]}, "2": {}}), "agreement rates in 0..1"),
        (edited(reliability={"0": {"edges": [0, 0.5], "agreement": [0.5]}, "2": {}}), "reliability"),
        (edited(reliability={"0": {"edges": [0, 1], "agreement": [0.5], "counts": [3, 4]}, "2": {}}), "counts"),
    ],
)
def test_damaged_folder_gives_one_sentence(
    target: Vlm, folder: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    damage(folder)
    with pytest.raises(ModelFolderError, match=sentence) as caught:
        ExitHeads.load(folder, target)
    assert "\n" not in str(caught.value)


def test_exits_are_saved_with_their_measurement_only(target: Vlm, tmp_path: Path) -> None:
    heads = ExitHeads(target, [0, 2], rank=4)
    with pytest.raises(ValueError, match="layers \\[1\\] have no exit"):
        heads.set_reliability({1: TABLE})
    heads.set_reliability({0: TABLE})
    with pytest.raises(ValueError, match="exit layers \\[2\\] have no reliability table"):
        heads.save(tmp_path)


@given(verdicts=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), bins=st.integers(1, 8))
def test_measured_rates_are_smoothed_counts_of_their_bin(verdicts: list[tuple[float, bool]], bins: int) -> None:
    table = measure_reliability([c for c, _ in verdicts], [right for _, right in verdicts], bins)
    assert sum(table.counts) == len(verdicts)
    for low, high, rate in zip(table.edges, table.edges[1:], table.agreement, strict=False):
        inside = [right for c, right in verdicts if low <= c and (c < high or high == 1.0)]
        assert rate == pytest.approx((sum(inside) + 0.5) / (len(inside) + 1))
        assert table.rate(low) == rate


LISTED = (3, 7, 40, 41, 200)


def listed(vlm: Vlm) -> ExitHeads:
    """Return trained exits with a measured short list, in use."""
    heads = trained(vlm)
    heads.set_short_list(LISTED)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.5,), (9,)) for layer in heads.layers}, Head.SHORT)
    heads.use(Head.SHORT)
    return heads


def test_a_short_list_gives_the_full_logits_of_its_tokens(target: Vlm, tmp_path: Path) -> None:
    listed(target).save(tmp_path)
    heads = ExitHeads.load(tmp_path, target)
    hidden = torch.randn(5, target.hidden_size, dtype=target.dtype)
    for layer in heads.layers:
        short, full = heads.logits(layer, hidden), heads.logits(layer, hidden, Head.FULL)
        assert short.shape == (5, len(LISTED)) and full.shape == (5, target.vocabulary)
        torch.testing.assert_close(short, full[:, list(LISTED)], rtol=0, atol=1e-12)
        assert heads.reliability(layer, 0.7) == 0.5
    assert heads.short_list is not None
    assert heads.short_list.nbytes == len(LISTED) * target.hidden_size * 8


def test_the_full_head_can_be_asked_for(target: Vlm, folder: Path, tmp_path: Path) -> None:
    listed(target).save(tmp_path)
    heads = ExitHeads.load(tmp_path, target, Head.FULL)
    hidden = torch.randn(1, target.hidden_size, dtype=target.dtype)
    assert heads.logits(0, hidden).shape == (1, target.vocabulary)
    assert heads.reliability(0, 0.7) == 0.75
    with pytest.raises(ModelFolderError, match="have no short list; make one with"):
        ExitHeads.load(folder, target, Head.SHORT)
    with pytest.raises(ValueError, match="no short list"):
        ExitHeads.load(folder, target).use(Head.SHORT)


def short_logits(*tokens: int) -> Any:
    """Return rows of logits over LISTED that each prefer one token."""
    return np.array([[4.0 if listed == token else 0.0 for listed in LISTED] for token in tokens])


def test_an_exit_is_silent_where_the_draft_leaves_its_short_list(target: Vlm) -> None:
    heads, rule = listed(target), Greedy()
    assert heads.judge(rule, [7, 8, 3], [-1, 0, 1], short_logits(7, 41, 3, 3)) is None
    assert heads.judge(rule, [8], [-1], short_logits(7, 3)) is None
    # the token outside stands behind one that the exit refuses, or beside one that it accepts
    refused = heads.judge(rule, [7, 8], [-1, 0], short_logits(40, 41, 3))
    assert refused is not None and (refused.path, refused.token) == ((), 40)
    beside = heads.judge(rule, [8, 7], [-1, -1], short_logits(7, 3, 200))
    assert beside is not None and (beside.path, beside.token) == ((1,), 200)
    heads.use(Head.FULL)
    assert heads.judge(rule, [8], [-1], np.eye(2, target.vocabulary)) is not None


@given(tokens=st.lists(st.sampled_from((*LISTED, 8, 300)), max_size=5), seed=st.integers(0, 2**16))
def test_a_short_verdict_is_the_full_one_on_what_is_listed(tokens: list[int], seed: int, target: Vlm) -> None:
    """With all other logits far below, a short list says what the full head says, or nothing."""
    heads = listed(target)
    short = np.random.default_rng(seed).normal(size=(len(tokens) + 1, len(LISTED)))
    full = np.full((len(tokens) + 1, target.vocabulary), -1e3)
    full[:, LISTED] = short
    parents = range(-1, len(tokens) - 1)
    said = heads.judge(Greedy(), tokens, parents, short)
    truth = Greedy().judge(tokens, parents, full)
    if said is None:
        assert tokens[len(truth.path)] not in LISTED
    else:
        assert (said.path, said.token) == (truth.path, truth.token)
        assert said.confidence == pytest.approx(truth.confidence)


def test_a_quantised_head_keeps_its_exits_but_no_short_list(
    target: Vlm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Packed(torch.nn.Linear):
        """Stands for a head of another class, whose weight is no plain matrix."""

    listed(target).save(tmp_path)
    plain = target.model.lm_head
    target.model.lm_head = Packed(target.hidden_size, 400, bias=False, dtype=target.dtype)
    try:
        heads = ExitHeads.load(tmp_path, target)
        assert heads.short_list is None and heads.head is Head.FULL and "use the full head" in caplog.text
        with pytest.raises(ModelFolderError, match="quantised"):
            ExitHeads.load(tmp_path, target, Head.SHORT)
    finally:
        target.model.lm_head = plain


def test_some_exits_are_taken_out_of_a_folder_without_the_target(target: Vlm, tmp_path: Path) -> None:
    heads = listed(target)
    heads.save(tmp_path / "all")
    files = ExitFiles.read(tmp_path / "all")
    files.select([2]).write(tmp_path / "one")
    files.select([2], short_list=False).write(tmp_path / "full")
    hidden = torch.randn(1, target.hidden_size, dtype=target.dtype)
    for name, head in (("one", Head.SHORT), ("full", Head.FULL)):
        again = ExitHeads.load(tmp_path / name, target)
        assert again.layers == (2,) and again.head is head and set(again.table) == {2}
        torch.testing.assert_close(again.logits(2, hidden), heads.logits(2, hidden, head), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"layers \[1\] have no exit"):
        files.select([1, 2])
