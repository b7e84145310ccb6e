from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adapters_training.exit_choice.timing import Clock, PassTimes, time_forward
from benchmarks import shapes
from benchmarks.exit_cost import figures, main, spaced
from speculation.exits import ExitHeads, Head
from speculation.vlm.load import load_vlm

TINY = shapes.Shape("llama", 150_000, shapes._text(64, 128, 6, 1, 1, 152_064, **shapes._LLAMA), tied=True)


def passes() -> PassTimes:
    """Three forwards of four layers of 1, 2 and 3 s each and a head of 2 s, with two exits."""
    layers = np.array([[1.0], [2.0], [3.0]]) * np.ones((3, 4))
    exits = {
        Head.FULL: {0: np.array([1.0, 1.0, 1.0]), 2: np.array([1.0, 3.0, 9.0])},
        Head.SHORT: {0: np.array([0.5, 0.5, 0.5]), 2: np.array([0.5, 0.5, 0.5])},
    }
    return PassTimes(Clock.WALL, layers, np.full(3, 2.0), exits)


def test_costs_are_shares_of_the_median_verification() -> None:
    entry = figures(passes(), 10)
    assert entry["exits"] == 2
    assert entry["verify_s"] == {"min": 6.0, "median": 10.0, "max": 14.0}
    assert entry["full"]["cost_s"] == {"min": 2.0, "median": 4.0, "max": 10.0}
    assert entry["full"]["share"] == pytest.approx(0.4) and entry["full"]["layers"] == pytest.approx(2.0)
    assert entry["full"]["share_of_all_layers"] == pytest.approx(4 / (2 + 10 * 2))
    assert entry["short"]["share"] == pytest.approx(0.1)


def test_leads_are_what_comes_after_a_layer() -> None:
    times = passes()
    assert [times.lead_s(layer) for layer in range(4)] == [8.0, 6.0, 4.0, 2.0]
    assert times.cost_s(Head.FULL, 2) == 3.0


def test_exits_are_spread_over_the_layers() -> None:
    assert spaced(1, 8) == [3] and spaced(3, 28) == [4, 13, 22]
    assert spaced(27, 28) == list(range(27))
    with pytest.raises(ValueError, match="a target of 8 layers takes 1 to 7 exits"):
        spaced(8, 8)


def test_forwards_are_timed_with_both_heads_and_change_nothing(tiny_target: Path) -> None:
    vlm = load_vlm(tiny_target)
    heads = ExitHeads(vlm, [0, 2], rank=4)
    heads.set_short_list([1, 2, 3])
    times = time_forward(vlm, heads, drafted=2, context=8, repeats=4)
    assert times.layers.shape == (4, 4) and times.head.shape == (4,) and (times.layers > 0).all()
    assert {head: sorted(each) for head, each in times.exits.items()} == {Head.FULL: [0, 2], Head.SHORT: [0, 2]}
    assert time_forward(vlm, None, drafted=0, context=0, repeats=1).exits == {}


def test_a_real_vocabulary_shows_on_a_cpu_where_the_layers_are_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "vicuna-7b", TINY)
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.PROJECT", tmp_path)
    options = ["--counts", "1", "--repeats", "3", "--context", "4", "--rank", "2", "--short-list", "32", "--save"]
    assert main(["--shape", "vicuna-7b", "--layers", "2", *options]) == 0
    words = capsys.readouterr().out
    assert "random vicuna-7b, 2 of its 6 layers" in words and "share of 6 layers (computed)" in words
    data = json.loads((tmp_path / "exit_cost_vicuna-7b_2_layers_cpu_float32.json").read_text())
    assert (data["layers"], data["layers_of_the_whole"], data["vocabulary"]) == (2, 6, 150_000)
    (entry,) = data["counts"]
    # 150,000 rows against 32: far beyond what a busy machine can blur
    assert entry["short"]["cost_s"]["min"] < entry["full"]["cost_s"]["min"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--counts", "9"], "takes 1 to 3 exits"),
        (["--layers", "2"], "--layers needs --shape"),
        (["--shape", "qwen2-vl-2b", "--layers", "40"], "has 28, give 2 or more"),
        (["--shape", "qwen2-vl-7b", "--dtype", "float32", "--device", "cuda:9"], "--device cuda:9"),
        (["--short-list", "100000"], "--short-list 100000: the target has"),
        (["--repeats", "0"], "must be at least 1"),
    ],
)
def test_what_cannot_be_timed_is_one_sentence(
    options: list[str], sentence: str, tiny_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--target-model", str(tiny_target), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_shortened_shape_keeps_its_widths_and_its_vocabulary() -> None:
    whole, short = shapes.SHAPES["qwen2-vl-2b"], shapes.shortened("qwen2-vl-2b", 4)
    assert short.text | {"num_hidden_layers": 28} == whole.text
    layer = 1536 * (2 * 1536 + 2 * 256) + 3 * 1536 * 8960
    decoders = [shapes.parameters(shapes.shortened("qwen2-vl-2b", layers)) for layers in (4, 5)]
    assert decoders[1] - decoders[0] == pytest.approx(layer, rel=1e-3)
