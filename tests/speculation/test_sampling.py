"""The noise against Random123's answers, the support against transformers' warpers, the draws against chi-square."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from speculation.sampling import (
    GREEDY,
    MAX_KEY,
    Logits,
    Rule,
    SamplingSettings,
    StepDraws,
    all_random_bits,
    blocks,
    choose,
    gumbel,
    key_words,
    noised,
    perturbed,
    philox,
    question_key,
    random_bits,
    support,
    uniforms,
)
from speculation.wire import Hello

KEYS = st.integers(0, MAX_KEY)
GOLDEN_BITS = [1703762061329021, 976273696410792, 1235824167713976, 3901669418735365]
GOLDEN_NOISE = [0.028360163648737127, -0.42454152369625714]
GOLDEN_KEYS = [1389609246023119845, 5840119000542174179, 7311278657728871310]
SETTINGS = st.builds(SamplingSettings, st.floats(0.01, 100.0), st.integers(0, 8), st.floats(0.0, 1.0, exclude_min=True))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """In plain ints, which do not wrap, and in arrays of both libraries, which do."""
    assert philox(counter, key) == expected
    for array in (lambda word: np.array([word] * 3), lambda word: torch.tensor([word] * 3)):
        words = philox(tuple(map(array, counter)), tuple(map(array, key)))  # type: ignore[arg-type]
        assert [word.tolist() for word in words] == [[word] * 3 for word in expected]


def test_golden_values() -> None:
    """What a version of this project draws, another must draw: answers are named by their keys."""
    draws = StepDraws(key=0x0123456789ABCDEF, position=7)
    assert random_bits([0, 1, 2, 151656], draws).tolist() == GOLDEN_BITS
    assert uniforms(random_bits([0], draws))[0] == (GOLDEN_BITS[0] + 0.5) / 2**52
    assert gumbel(random_bits([0, 1], draws)) == pytest.approx(GOLDEN_NOISE, rel=1e-14)
    assert [question_key(0, 0), question_key(0, 1), question_key(MAX_KEY, 5)] == GOLDEN_KEYS


@given(KEYS, st.integers(0, 600), st.integers(1, 99))
def test_whole_rows_and_single_tokens_and_torch_agree_bit_for_bit(key: int, position: int, size: int) -> None:
    draws = StepDraws(key, position)
    bits = all_random_bits(size, draws)
    assert (random_bits(np.arange(size)[::-1], draws)[::-1] == bits).all()
    pairs = torch.arange((size + 1) // 2)
    even, odd = blocks(pairs, position, *key_words(key))
    assert (torch.stack([even, odd], -1).flatten()[:size].numpy() == bits).all()
    assert (((even.double() + 0.5) * 2.0**-52).numpy() == uniforms(bits)[0::2]).all()


def test_extreme_bits_make_finite_noise() -> None:
    least, most = gumbel(np.array([0, 2**52 - 1]))
    assert uniforms(np.array([2**52 - 1]))[0] < 1.0
    assert least == pytest.approx(-math.log(53 * math.log(2)), rel=1e-12) and most == pytest.approx(53 * math.log(2))


def test_neighbouring_keys_positions_and_tokens_have_nothing_in_common() -> None:
    near = [StepDraws(0, 0), StepDraws(1, 0), StepDraws(0, 1), StepDraws(1 << 32, 0), StepDraws(0, 1 << 16)]
    rows = np.stack([all_random_bits(2000, draws) for draws in near])
    assert len(np.unique(rows)) == rows.size
    correlation = np.corrcoef(np.concatenate([uniforms(rows), uniforms(rows[:1, ::-1])]))
    assert np.abs(correlation - np.eye(6)).max() < 0.1
    ones = np.array([(rows >> bit & 1).mean() for bit in range(52)])
    assert np.abs(ones - 0.5).max() < 0.03  # three standard deviations of 10,000 coins are 0.015


@given(SETTINGS)
def test_texts_are_read_as_they_are_written(settings: SamplingSettings) -> None:
    assert SamplingSettings.parse(settings.text) == settings
    assert len(settings.text) <= 200 and Hello("t", 9, sampling=settings.text)


def test_texts() -> None:
    full = SamplingSettings(0.7, 50, 0.9)
    assert full.text == "coupled(temperature=0.7,top_k=50,top_p=0.9)"
    assert SamplingSettings.parse(" coupled(top_p=0.9, temperature=.70, top_k=50) ") == full
    assert SamplingSettings(1.0).text == "coupled(temperature=1.0)"
    assert SamplingSettings.parse("greedy") == GREEDY == SamplingSettings.parse(GREEDY.text)
    assert SamplingSettings.parse("coupled(temperature=0,top_k=3)").text == "greedy"
    assert SamplingSettings(0.5, rule=Rule.SPLIT).text == "split(temperature=0.5)"
    assert SamplingSettings.parse("sparse(temperature=1,keep=8)") == SamplingSettings(1.0, rule=Rule.SPARSE, keep=8)
    assert SamplingSettings.parse("point(temperature=1.0)").rule is Rule.POINT


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nucleus", "'nucleus' is unknown; give greedy, coupled"),
        ("coupled()", "'' is no field"),
        ("coupled(top_k=3)", "names no temperature"),
        ("coupled(temperature=0.001)", "temperature is 0.001; give 0 .greedy. or 0.01 to 100"),
        ("coupled(temperature=nan)", "temperature is nan"),
        ("coupled(temperature=-1)", "temperature is -1"),
        ("coupled(temperature=warm)", "temperature is 'warm', no number"),
        ("coupled(temperature=1,top_k=-1)", "top_k is -1; give 0 .all tokens. to 1048576"),
        ("coupled(temperature=1,top_k=2.5)", "top_k is '2.5', no number"),
        ("coupled(temperature=1,top_p=0)", "top_p is 0; give more than 0, up to 1"),
        ("coupled(temperature=1,top_p=1.5)", "top_p is 1.5"),
        ("coupled(temperature=1,heat=2)", "'heat=2' is no field; known are temperature, top_k, top_p"),
        ("coupled(temperature=1,temperature=2)", "temperature is given twice"),
        ("split(temperature=0)", "split draws at random; give a temperature above 0"),
        ("split(temperature=1,keep=8)", "'keep=8' is no field"),
        ("sparse(temperature=1,keep=0)", "keep is 0; give 1 to 4096"),
    ],
)
def test_texts_that_mean_nothing_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplingSettings.parse(text)


@pytest.mark.parametrize("key", [-1, 2**63])
def test_keys_are_bounded(key: int) -> None:
    with pytest.raises(ValueError, match="key is .*; give 0 to 2.63 - 1"):
        random_bits([0], StepDraws(key))


@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12), SETTINGS)
def test_the_support_is_that_of_transformers_warpers(row: list[float], settings: SamplingSettings) -> None:
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
        assert (np.isfinite(scores[0].numpy()).nonzero()[0] == support(row, SamplingSettings(1.0, 0, top_p))).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(broken: float) -> None:
    with pytest.raises(ValueError, match="logits are not finite"):
        choose(np.array([0.0, broken, 1.0]), SamplingSettings(1.0), StepDraws())


@given(st.lists(st.floats(-9.0, 9.0), min_size=1, max_size=12), SETTINGS, KEYS, st.integers(0, 511))
def test_noise_for_the_survivors_alone_is_that_of_the_whole_row(
    row: list[float], settings: SamplingSettings, key: int, position: int
) -> None:
    logits, draws = np.array(row), StepDraws(key, position)
    noisy = logits + settings.temperature * gumbel(all_random_bits(len(row), draws))
    columns, values = noised(logits, settings, draws)
    assert (values == noisy[columns]).all() and (columns == support(logits, settings)).all()
    whole = perturbed(logits, settings, draws)
    column, probability = choose(logits, settings, draws)
    assert column == int(np.argmax(whole)) and probability == pytest.approx(1.0 / np.exp(whole - whole[column]).sum())


def test_greedy_is_the_limit_of_temperature_nought() -> None:
    row = np.random.default_rng(0).normal(size=50)
    assert perturbed(row, GREEDY, StepDraws(5, 5)) is row
    column, probability = choose(row, GREEDY, StepDraws())
    cold_column, cold = choose(row, SamplingSettings(0.01), StepDraws())
    assert column == cold_column == int(np.argmax(row)) and cold == pytest.approx(probability, rel=0.1)


def _frequencies(logits: Logits, settings: SamplingSettings, draws: list[StepDraws]) -> list[int]:
    drawn = [choose(logits, settings, each)[0] for each in draws]
    return [drawn.count(column) for column in range(len(logits))]


@pytest.mark.parametrize(
    "settings",
    [SamplingSettings(1.0), SamplingSettings(0.7), SamplingSettings(1.5, 5), SamplingSettings(0.7, 6, 0.9)],
    ids=lambda settings: settings.text,
)
def test_draws_have_the_target_s_distribution(settings: SamplingSettings) -> None:
    """Over keys and over positions of one key. The draws are fixed, so this fails always or never."""
    logits = np.random.default_rng(1).normal(size=8)
    chances = np.zeros(8)
    columns = support(logits, settings)
    chances[columns] = np.exp(logits[columns] / settings.temperature)
    chances /= chances.sum()
    for draws in (
        [StepDraws(question_key(0, number), 3) for number in range(4000)],
        [StepDraws(question_key(1, 0), position) for position in range(4000)],
    ):
        counts = np.array(_frequencies(logits, settings, draws))
        assert counts[chances == 0.0].sum() == 0
        found = chances > 0.0
        assert chisquare(counts[found], 4000 * chances[found]).pvalue > 1e-3


def test_draws_at_two_positions_are_independent() -> None:
    logits, settings = np.array([0.0, 0.5, 1.0]), SamplingSettings(1.0)
    chances = np.exp(logits) / np.exp(logits).sum()
    counts = np.zeros((3, 3))
    for number in range(4000):
        draws = StepDraws(question_key(2, number))
        counts[choose(logits, settings, draws)[0], choose(logits, settings, draws.ahead(1))[0]] += 1
    assert chisquare(counts.ravel(), 4000 * np.outer(chances, chances).ravel()).pvalue > 1e-3


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
