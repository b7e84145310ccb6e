"""Exits read the frozen target's own head, train nothing else, and belong to one target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculation.exits import ExitHeads, Reliability, measure_reliability
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward_layers, prefill
from speculation.vlm.load import ModelFolderError, Vlm
from speculation.vlm.processing import prepare
from tests.models import frame, scratch_inputs

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


def test_adapter_formula(target: Vlm) -> None:
    heads = trained(target)
    adapter: Any = heads.adapters["2"]
    hidden = torch.randn(3, target.hidden_size, dtype=target.dtype)
    scaled = hidden / torch.sqrt((hidden**2).mean(-1, keepdim=True) + 1e-6) * adapter.norm.weight
    down = scaled @ adapter.down.weight.T
    expected = hidden + (down * torch.sigmoid(down)) @ adapter.up.weight.T
    torch.testing.assert_close(adapter(hidden), expected, rtol=0, atol=1e-12)


def test_training_moves_adapters_only(target: Vlm) -> None:
    heads = ExitHeads(target, [1], rank=4)
    hidden = torch.randn(5, target.hidden_size, dtype=target.dtype)
    loss: Any = torch.nn.functional.cross_entropy(heads.logits(1, hidden), torch.arange(5))
    loss.backward()
    adapter: Any = heads.adapters["1"]
    assert adapter.up.weight.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in target.model.parameters())


def test_files_give_the_same_exits_frozen(target: Vlm, folder: Path) -> None:
    again, heads = ExitHeads.load(folder, target), trained(target)
    hidden = torch.randn(2, target.hidden_size, dtype=target.dtype)
    assert again.layers == (0, 2)
    for layer in again.layers:
        torch.testing.assert_close(again.logits(layer, hidden), heads.logits(layer, hidden), rtol=0, atol=0)
        assert again.reliability(layer, 0.7) == 0.75
    assert not any(weight.requires_grad for weight in again.parameters())


def test_other_target_is_refused(draft: Vlm, folder: Path, target: Vlm) -> None:
    with pytest.raises(
        ModelFolderError, match=f"belong to target {target.fingerprint}, the loaded target is {draft.fingerprint}"
    ):
        ExitHeads.load(folder, draft)


def edit(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "exits.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "exits.json").unlink(), "has no exits.json; train exits"),
        (lambda folder: (folder / "exits.safetensors").unlink(), "has no exits.safetensors; train exits"),
        (lambda folder: (folder / "exits.json").write_text("{"), "exits.json is no JSON"),
        (lambda folder: (folder / "exits.safetensors").write_text("version"), "do not load"),
        (edit(format=2), "is not format 1"),
        (edit(rank=5), "do not load"),
        (edit(layers=[0, 9]), r"must be in 0\.\.2"),
        (edit(reliability={}), "do not load"),
        (edit(reliability={"0": {"edges": [0, 1], "agreement": [2]}, "2": {}}), "agreement rates in 0..1"),
    ],
)
def test_damaged_folder_gives_one_sentence(
    target: Vlm, folder: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    damage(folder)
    with pytest.raises(ModelFolderError, match=sentence) as caught:
        ExitHeads.load(folder, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layers", [[], [3], [-1], [2, 0], [1, 1]])
def test_layers_out_of_place(target: Vlm, layers: list[int]) -> None:
    with pytest.raises(ValueError, match="exit layers"):
        ExitHeads(target, layers, rank=4)


def test_exits_are_saved_with_their_measurement_only(target: Vlm, tmp_path: Path) -> None:
    heads = ExitHeads(target, [0, 2], rank=4)
    with pytest.raises(ValueError, match="layers \\[1\\] have no exit"):
        heads.set_reliability({1: TABLE})
    heads.set_reliability({0: TABLE})
    with pytest.raises(ValueError, match="exit layers \\[2\\] have no reliability table"):
        heads.save(tmp_path)


def test_reliability_bins() -> None:
    table = Reliability((0.0, 0.5, 0.9, 1.0), (0.1, 0.6, 0.95))
    confidences = (-0.1, 0.0, 0.499, 0.5, 0.899, 0.9, 1.0, 1.1)
    assert [table.rate(c) for c in confidences] == [0.1, 0.1, 0.1, 0.6, 0.6, 0.95, 0.95, 0.95]


@pytest.mark.parametrize(
    ("edges", "agreement"),
    [
        ((0.0,), ()),
        ((0.0, 0.5), (0.5,)),
        ((0.0, 0.6, 0.5, 1.0), (0.1, 0.2, 0.3)),
        ((0.0, 1.0), (1.5,)),
        ((0.0, 1.0), ()),
    ],
)
def test_reliability_refuses_other_tables(edges: tuple[float, ...], agreement: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="reliability"):
        Reliability(edges, agreement)


@given(verdicts=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), bins=st.integers(1, 8))
def test_measured_rates_are_smoothed_counts_of_their_bin(verdicts: list[tuple[float, bool]], bins: int) -> None:
    table = measure_reliability([c for c, _ in verdicts], [right for _, right in verdicts], bins)
    for low, high, rate in zip(table.edges, table.edges[1:], table.agreement, strict=False):
        inside = [right for c, right in verdicts if low <= c and (c < high or high == 1.0)]
        assert rate == pytest.approx((sum(inside) + 0.5) / (len(inside) + 1))
        assert table.rate(low) == rate


def test_measurement_finds_a_calibrated_exit() -> None:
    rng = np.random.default_rng(0)
    confidences = rng.uniform(size=4000)
    table = measure_reliability(confidences.tolist(), (rng.uniform(size=4000) < confidences).tolist())
    for confidence in (0.05, 0.35, 0.65, 0.95):
        assert table.rate(confidence) == pytest.approx(confidence, abs=0.1)
    with pytest.raises(ValueError, match="nothing to measure"):
        measure_reliability([], [])
