"""The figures of coupling against counting: shared noise by the thousand, and distributions done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coupling import (
    KINDS,
    compare,
    coupled_agreement,
    exit_figures,
    exit_verdicts,
    exits_table,
    figures,
    main,
)
from cloud_verifier.engine import VlmEngine
from speculation.exits import ExitHeads, Reliability
from speculation.sampling import Coupled, Distribution, StepDraws, question_key
from speculation.vlm.load import Vlm
from vlm_nav_evaluation.experiment.questions import questions

chances = (
    st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any).map(lambda counts: np.array(counts) / sum(counts))
)


@given(chances, chances)
def test_agreement_lies_between_its_bound_and_what_rejection_reaches(p: np.ndarray, q: np.ndarray) -> None:
    overlap = float(np.minimum(p, q).sum())
    agreement = coupled_agreement(p, q)
    assert overlap / (2.0 - overlap) - 1e-12 <= agreement <= overlap + 1e-12
    slow = sum(
        1.0 / sum(max(p[i] / p[j], q[i] / q[j]) for i in range(4)) for j in range(4) if p[j] > 0.0 and q[j] > 0.0
    )
    assert agreement == pytest.approx(slow)


def test_agreement_is_what_shared_noise_gives() -> None:
    dice = np.random.default_rng(0)
    p, q = dice.normal(size=12), dice.normal(size=12)
    settings = Coupled(0.8, 10, 0.95)
    places = [compare(p, q, settings, StepDraws(question_key(0, number))) for number in range(3000)]
    expected = coupled_agreement(Distribution.of(p, settings).row, Distribution.of(q, settings).row)
    assert places[0]["coupled_expected"] == pytest.approx(expected) and 0.2 < expected < 0.8
    assert np.mean([place["coupled"] for place in places]) == pytest.approx(expected, abs=0.03)
    assert places[0]["bound"] == pytest.approx(places[0]["rejection"] / (2.0 - places[0]["rejection"]))
    assert places[0]["bound"] <= expected <= places[0]["rejection"]


def test_figures_are_per_token_and_per_frame() -> None:
    tokens = [dict(zip(KINDS, row, strict=True)) for row in ((1.0, 0.5, 1.0, 1.0), (0.0, 0.5, 0.5, 1 / 3), (1.0,) * 4)]
    found = figures([tokens[:2], tokens[2:]])
    assert found["tokens"] == 3 and found["coupled"] == {
        "mean": pytest.approx(2 / 3), "min": 0.5, "median": 0.75, "max": 1.0
    }  # fmt: skip
    assert found["bound"]["mean"] == pytest.approx((1.0 + 1.0 / 3.0 + 1.0) / 3.0)


def test_the_command_compares_a_pair(tiny_target: Path, tiny_draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--target-model", str(tiny_target), "--frames", "random", "--steps", "2", "--max-tokens", "6"]
    assert main([*line, "--draft-model", str(tiny_target), "--temperatures", "1.0"]) == 0
    out = capsys.readouterr().out
    assert (
        "coupled(temperature=1.0): coupled, as sampled" in out and out.count("1.000") >= 16
    )  # a draft like its target
    assert main([*line, "--draft-model", str(tiny_draft)]) == 0
    assert "coupled(temperature=0.7): rejection, 1 - TV" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--temperatures", "0"], "--temperatures: 0 draws nothing; give 0.01 to 100"),
        (["--temperatures", "hot"], "--temperatures 'hot': give numbers"),
        (["--top-p", "2"], "top_p is 2; give more than 0, up to 1"),
        (["--steps", "0"], "--steps 0: give at least 1"),
        (["--draft-model", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_run_is_one_sentence(option: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(option) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("coupling: ") and error.count("\n") == 1


def test_exits_are_compared_with_the_target_s_own_samples() -> None:
    verdicts = [(1, True, 0.5), (1, False, 0.7), (2, True, 0.9)]
    found = exit_figures(verdicts)
    assert found["1"] == {"right": 0.5, "confidence": pytest.approx(0.6)} and found["2"]["right"] == 1.0
    assert "50 (60)" in exits_table({"greedy": found})


def test_exits_have_a_verdict_at_every_token(target: Vlm) -> None:
    heads = ExitHeads(target, (1,), rank=4)
    heads.set_reliability({1: Reliability((0.0, 1.0), (0.25,))})
    (question,) = questions("random", 1)
    found = exit_verdicts(VlmEngine(target, 1, 600, heads, max_draft=4), question, Coupled(1.0), 3, 6)
    assert [(layer, sure) for layer, _, sure in found] == [(1, 0.25)] * len(found) and 1 <= len(found) <= 6
