"""The support against transformers' warpers, the draws against chi-square."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from speculation.sampling import (
    MAX_KEY,
    Coupled,
    Logits,
    SamplingScheme,
    StepDraws,
    choose,
    noised,
    perturbed,
    question_key,
    support,
)
from speculation.sampling.noise import all_random_bits, blocks, gumbel, key_words, uniforms

KEYS = st.integers(0, MAX_KEY)
SETTINGS = st.builds(Coupled, st.floats(0.01, 100.0), st.integers(0, 8), st.floats(0.0, 1.0, exclude_min=True))


@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12), SETTINGS)
def test_the_support_is_that_of_transformers_warpers(row: list[float], settings: SamplingScheme) -> None:
    """On rows with many ties, which every warper treats in a way of its own."""
    scores = torch.tensor([row], dtype=torch.float64)
    unused = torch.zeros((1, 1), dtype=torch.long)
    scores = TemperatureLogitsWarper(settings.temperature)(unused, scores)
    if settings.top_k:
        scores = TopKLogitsWarper(settings.top_k)(unused, scores)
    if settings.top_p < 1.0:
        ascending = scores.sort().values.softmax(-1).cumsum(-1)
        if bool(((ascending - (1.0 - settings.top_p)).abs() < 1e-12).any()):
            return  # the limit itself is met: which side it falls is a matter of rounding
        scores = TopPLogitsWarper(settings.top_p)(unused, scores)
    assert support(np.array(row), settings).tolist() == torch.isfinite(scores[0]).nonzero().flatten().tolist()


def test_a_large_vocabulary_is_cut_as_a_small_one() -> None:
    row = np.random.default_rng(3).normal(scale=4.0, size=20_000)
    unused = torch.zeros((1, 1), dtype=torch.long)
    for top_p in (0.3, 0.9, 0.999):
        scores = TopPLogitsWarper(top_p)(unused, torch.from_numpy(row)[None])
        assert (np.isfinite(scores[0].numpy()).nonzero()[0] == support(row, Coupled(1.0, 0, top_p))).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(broken: float) -> None:
    with pytest.raises(ValueError, match="logits are not finite"):
        choose(np.array([0.0, broken, 1.0]), Coupled(1.0), StepDraws())


@given(st.lists(st.floats(-9.0, 9.0), min_size=1, max_size=12), SETTINGS, KEYS, st.integers(0, 511))
def test_noise_for_the_survivors_alone_is_that_of_the_whole_row(
    row: list[float], settings: SamplingScheme, key: int, position: int
) -> None:
    logits, draws = np.array(row), StepDraws(key, position)
    noisy = logits + settings.temperature * gumbel(all_random_bits(len(row), draws))
    columns, values = noised(logits, settings, draws)
    assert (values == noisy[columns]).all() and (columns == support(logits, settings)).all()
    whole = perturbed(logits, settings, draws)
    column, probability = choose(logits, settings, draws)
    assert column == int(np.argmax(whole)) and probability == pytest.approx(1.0 / np.exp(whole - whole[column]).sum())


def _frequencies(logits: Logits, settings: SamplingScheme, draws: list[StepDraws]) -> list[int]:
    drawn = [choose(logits, settings, each)[0] for each in draws]
    return [drawn.count(column) for column in range(len(logits))]


@pytest.mark.parametrize(
    "settings",
    [Coupled(1.0), Coupled(0.7, 6, 0.9)],
    ids=lambda settings: settings.text,
)
def test_draws_have_the_target_s_distribution(settings: SamplingScheme) -> None:
    """Over keys and over positions of one key. The draws are fixed, so this fails always or never."""
    logits = np.random.default_rng(1).normal(size=8)
    chances = np.zeros(8)
    columns = support(logits, settings)
    chances[columns] = np.exp(logits[columns] / settings.temperature)
    chances /= chances.sum()
    for draws in (
        [StepDraws(question_key(0, number), 3) for number in range(2000)],
        [StepDraws(question_key(1, 0), position) for position in range(2000)],
    ):
        counts = np.array(_frequencies(logits, settings, draws))
        assert counts[chances == 0.0].sum() == 0
        found = chances > 0.0
        assert chisquare(counts[found], 2000 * chances[found]).pvalue > 1e-3


def test_draws_at_two_positions_are_independent() -> None:
    logits, settings = np.array([0.0, 0.5, 1.0]), Coupled(1.0)
    chances = np.exp(logits) / np.exp(logits).sum()
    counts = np.zeros((3, 3))
    for number in range(2000):
        draws = StepDraws(question_key(2, number))
        counts[choose(logits, settings, draws)[0], choose(logits, settings, draws.ahead(1))[0]] += 1
    assert chisquare(counts.ravel(), 2000 * np.outer(chances, chances).ravel()).pvalue > 1e-3


@pytest.mark.gpu
def test_a_gpu_draws_the_same_bits() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for draws in (StepDraws(0, 0), StepDraws(MAX_KEY, 511), StepDraws(question_key(0, 1), 3)):
        bits = all_random_bits(151_657, draws)
        even, odd = blocks(torch.arange(75_829, device="cuda"), draws.position, *key_words(draws.key))
        found = torch.stack([even, odd], -1).flatten()[:151_657]
        assert (found.cpu().numpy() == bits).all()
        assert (((found.double() + 0.5) * 2.0**-52).cpu().numpy() == uniforms(bits)).all()
