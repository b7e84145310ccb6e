"""The noise against Random123's answers, and as it must stay."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import MAX_KEY, StepDraws, question_key
from speculation.sampling.noise import all_random_bits, blocks, gumbel, key_words, philox, random_bits, uniforms

KEYS = st.integers(0, MAX_KEY)
GOLDEN_BITS = [1703762061329021, 976273696410792, 1235824167713976, 3901669418735365]
GOLDEN_NOISE = [0.028360163648737127, -0.42454152369625714]
GOLDEN_KEYS = [1389609246023119845, 5840119000542174179, 7311278657728871310]


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


@pytest.mark.parametrize("key", [-1, 2**63])
def test_keys_are_bounded(key: int) -> None:
    with pytest.raises(ValueError, match="key is .*; give 0 to 2.63 - 1"):
        random_bits([0], StepDraws(key))
