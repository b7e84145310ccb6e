"""The same random numbers on both sides: Gumbel noise as a hash of key, position and token (numpy, no torch).

The 52 bits behind a random number are the same integers in numpy and torch, on CPUs and GPUs. So is the float64 in
(0, 1) made of them, since both steps are exact. The logarithms of the Gumbel noise are the machine's own and may differ
in their last bits. That never reaches the answer: only the verifier's noise decides a token. A draft on another machine
could miss a token where two perturbed logits lie within about 1e-15 of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = Any
"""A 32-bit word, or an array of them: an int, or int64 of numpy or torch (which has no unsigned 64-bit shifts)."""

MAX_KEY = 2**63 - 1

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_TOKEN_DRAWS, _QUESTION_KEYS = 0, 1
"""Last word of the counter: what a block of random bits is for."""
BITS = 52
"""Bits of a draw: the middle of each of 2^52 parts of (0, 1) is a float64; with 53 bits the last would round to 1."""


@dataclass(frozen=True)
class StepDraws:
    """Names random draws: those of the answer with this `key` (0 to 2^63 - 1) at answer `position` (from 0)."""

    key: int = 0
    position: int = 0

    def ahead(self, tokens: int) -> StepDraws:
        """Return the draws so many positions further on."""
        return StepDraws(self.key, self.position + tokens)


FIRST_DRAWS = StepDraws()
"""The default: key 0, the answer's first token."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Return 128 random bits as four words: Philox4x32-10 (Salmon et al., Parallel Random Numbers, SC 2011).

    A product of two words wraps around in an int64; both its words come out right all the same, because they are
    masked after the arithmetic shift.
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (second >> 32 & _WORD) ^ b ^ low, second & _WORD, (first >> 32 & _WORD) ^ d ^ high, first & _WORD
        low, high = low + _WEYL[0] & _WORD, high + _WEYL[1] & _WORD
    return a, b, c, d


def blocks(pair: Words, position: Words, low: Words, high: Words) -> tuple[Words, Words]:
    """Return the 52 random bits of tokens 2 x `pair` and 2 x `pair` + 1, where `low` and `high` are the key's words."""
    a, b, c, d = philox((pair, position, 0, _TOKEN_DRAWS), (low, high))
    return a << 20 | b >> 12, c << 20 | d >> 12


def key_words(key: int) -> tuple[int, int]:
    """Return a key's lower and upper 32 bits. Raises ValueError for a key outside 0 to 2^63 - 1."""
    if not 0 <= key <= MAX_KEY:
        raise ValueError(f"sampling key is {key}; give 0 to 2^63 - 1")
    return key & _WORD, key >> 32


def random_bits(tokens: npt.ArrayLike, draws: StepDraws) -> Tokens:
    """Return each token's 52 random bits [n] as integers."""
    wanted = np.asarray(tokens, dtype=np.int64)
    even, odd = blocks(wanted >> 1, draws.position, *key_words(draws.key))
    return np.asarray(np.where((wanted & 1).astype(bool), odd, even), dtype=np.int64)


def all_random_bits(vocabulary: int, draws: StepDraws) -> Tokens:
    """Return the random bits of tokens 0 to `vocabulary` - 1; what two of them share is computed once."""
    bits = np.empty((vocabulary + 1) // 2 * 2, dtype=np.int64)
    pairs = np.arange(len(bits) // 2, dtype=np.int64)
    bits[0::2], bits[1::2] = blocks(pairs, draws.position, *key_words(draws.key))
    return bits[:vocabulary]


def uniforms(bits: Tokens) -> Floats:
    """Return the number in (0, 1) that 52 bits stand for: the middle of its part, exact in float64."""
    return (bits.astype(np.float64) + 0.5) * 2.0**-BITS


def gumbel(bits: Tokens) -> Floats:
    """Return the standard Gumbel noise of random bits, about -3.6 to 36.8."""
    noise: Floats = -np.log(-np.log(uniforms(bits)))
    return noise


def gumbel_at(columns: Tokens, size: int, draws: StepDraws, ids: Tokens | None = None) -> Floats:
    """Return the Gumbel noise of some columns of a row of `size`; `ids` are the tokens of all where these are fewer."""
    if ids is None and len(columns) == size:
        return gumbel(all_random_bits(size, draws))
    return gumbel(random_bits(columns if ids is None else ids[columns], draws))


def likeliest(values: Floats) -> tuple[int, float]:
    """Return the place of the largest logit of a row, of equals the first, and its softmax."""
    best = int(np.argmax(values))
    return best, 1.0 / float(np.exp(values - values[best]).sum())


def question_key(seed: int, number: int) -> int:
    """Return the key of a question: a hash of a robot's seed (0 to 2^63 - 1) and the question's number."""
    low, high = key_words(seed)
    words = philox((number & _WORD, number >> 32 & _WORD, 0, _QUESTION_KEYS), (low, high))
    return int((words[0] | words[1] << 32) & MAX_KEY)
