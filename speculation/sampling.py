"""How tokens are drawn: logits -> what may be said, and the same noise for it on both sides (numpy, no torch).

A token is drawn as the argmax of logits + temperature x Gumbel noise: a sample of softmax(logits / temperature) (the
Gumbel-max trick). The noise of a token at an answer position is a hash of (key, position, token), so draft, exits and
target perturb alike: a draft token is right iff it is the target's own, and only tokens cross the link (Daliri, Musco,
Suresh, Coupling without Communication and Drafter-Invariant Speculative Decoding, arXiv 2408.07978).

What is guaranteed: the 52 bits behind a draw are the same integers in numpy and torch, on CPUs and GPUs, and so is the
float64 in (0, 1) made of them, since both steps are exact. The logarithms of the Gumbel noise are the machine's own and
may differ in their last bits. That never reaches the answer: only the verifier's noise decides a token. A draft on
another machine could miss a token where two perturbed logits lie within about 1e-15 of each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating]
Row: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = Any
"""A 32-bit word, or an array of them: an int, or int64 of numpy or torch (which has no unsigned 64-bit shifts)."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
MAX_TOP_K = 2**20
MAX_KEY = 2**63 - 1
GREEDY_TEXT = "greedy"
MAX_KEEP = 4096
START_KEEP = 32
_FORM = "greedy, coupled(temperature=0.7,top_k=50,top_p=0.9), or point, whole, split or sparse in place of coupled"
_TEXT = re.compile(r"(?P<rule>[a-z]+)\((?P<fields>[^()]*)\)")

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_TOKEN_DRAWS, _QUESTION_KEYS = 0, 1
"""Last word of the counter: what a block of random bits is for."""
BITS = 52
"""Of a draw: the middle of each of 2^52 equal parts of (0, 1) is a float64; with 53 bits the last would round to 1."""


class Rule(str, Enum):
    """Which draft tokens stand when an answer is drawn at random; all keep the target's distribution.

    COUPLED: those that the target draws itself, with noise that the draft knows, too (arXiv 2408.07978).
    POINT: the same, but the draft proposes its likeliest tokens, whatever the noise: the point-mass rule for
        deterministic proposals, a token x of the target's distribution p is accepted with probability p(x).
    WHOLE, SPLIT, SPARSE: rejection sampling (Leviathan et al., arXiv 2211.17192), see `speculation.rejection`. WHOLE:
        the draft's whole distributions go up (DSD). SPLIT: its probabilities of the tokens that it chose go up, and
        after a rejection the target's whole distribution comes down (DSSD). SPARSE: of that only the head, and the rest
        where it is needed (PicoSpec, made exact).
    """

    COUPLED = "coupled"
    POINT = "point"
    WHOLE = "whole"
    SPLIT = "split"
    SPARSE = "sparse"

    @property
    def rejects(self) -> bool:
        """Whether what follows a rejected token depends on the draft's distribution."""
        return self not in (Rule.COUPLED, Rule.POINT)


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn from logits; temperature 0 is greedy decoding.

    temperature: 0, or 0.01 to 100. top_k: only so many likeliest tokens, 0 for all. top_p: only the likeliest tokens
    that together reach this probability, 1 for all. In this order, ties as in transformers: tokens as likely as the
    k-th all stay. rule: which draft tokens stand. keep: so many of the target's likeliest tokens come down with
    `Rule.SPARSE`. Raises ValueError, naming field and limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    rule: Rule = Rule.COUPLED
    keep: int = START_KEEP

    def __post_init__(self) -> None:
        if self.temperature == 0.0 and self.rule is not Rule.COUPLED:
            raise ValueError(f"sampling: {self.rule.value} draws at random; give a temperature above 0, or greedy")
        if not 1 <= self.keep <= MAX_KEEP or (self.keep != START_KEEP and self.rule is not Rule.SPARSE):
            raise ValueError(f"sampling: keep is {self.keep}; give 1 to {MAX_KEEP}, with sparse only")
        if self.temperature != 0.0 and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"sampling: temperature is {self.temperature:g}; give 0 (greedy) or "
                f"{MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            )
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"sampling: top_k is {self.top_k}; give 0 (all tokens) to {MAX_TOP_K}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"sampling: top_p is {self.top_p:g}; give more than 0, up to 1 (all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def text(self) -> str:
        """The canonical text, as in `Hello.sampling`; what is off is left out."""
        if self.greedy:
            return GREEDY_TEXT
        fields = [f"temperature={self.temperature!r}"]
        if self.top_k:
            fields.append(f"top_k={self.top_k}")
        if self.top_p < 1.0:
            fields.append(f"top_p={self.top_p!r}")
        if self.rule is Rule.SPARSE:
            fields.append(f"keep={self.keep}")
        return f"{self.rule.value}({','.join(fields)})"

    @classmethod
    def parse(cls, text: str) -> SamplingSettings:
        """Return the settings that a text names. Raises ValueError, naming the field and its limit."""
        if text.strip() == GREEDY_TEXT:
            return cls()
        match = _TEXT.fullmatch(text.strip())
        if match is None or match["rule"] not in {rule.value for rule in Rule}:
            raise ValueError(f"sampling {text[:80]!r} is unknown; give {_FORM}")
        rule = Rule(match["rule"])
        known = {"temperature": float, "top_k": int, "top_p": float}
        if rule is Rule.SPARSE:
            known["keep"] = int
        found: dict[str, Any] = {}
        for field in match["fields"].split(","):
            name, equals, value = (part.strip() for part in field.partition("="))
            if not equals or name not in known:
                raise ValueError(f"sampling: {field.strip()[:40]!r} is no field; known are {', '.join(known)}")
            if name in found:
                raise ValueError(f"sampling: {name} is given twice")
            try:
                found[name] = known[name](value)
            except ValueError:
                raise ValueError(f"sampling: {name} is {value[:40]!r}, no number; give {_FORM}") from None
        if "temperature" not in found:
            raise ValueError(f"sampling {text[:80]!r} names no temperature; give {_FORM}")
        return cls(rule=rule, **found)


GREEDY = SamplingSettings()


@dataclass(frozen=True)
class StepDraws:
    """Names random draws: those of the answer with this `key` (0 to 2^63 - 1) at answer `position` (from 0)."""

    key: int = 0
    position: int = 0

    def ahead(self, tokens: int) -> StepDraws:
        """Return the draws so many positions further on."""
        return StepDraws(self.key, self.position + tokens)


FIRST_DRAWS = StepDraws()
"""Where nothing else is said: key 0, the answer's first token."""


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


def uniforms(bits: Tokens) -> Row:
    """Return the number in (0, 1) that 52 bits stand for: the middle of its part, exact in float64."""
    return (bits.astype(np.float64) + 0.5) * 2.0**-BITS


def gumbel(bits: Tokens) -> Row:
    """Return the standard Gumbel noise of random bits, about -3.6 to 36.8."""
    noise: Row = -np.log(-np.log(uniforms(bits)))
    return noise


def question_key(seed: int, number: int) -> int:
    """Return the key of a question: a hash of a robot's seed (0 to 2^63 - 1) and the question's number."""
    low, high = key_words(seed)
    words = philox((number & _WORD, number >> 32 & _WORD, 0, _QUESTION_KEYS), (low, high))
    return int((words[0] | words[1] << 32) & MAX_KEY)


def support(logits: Logits, settings: SamplingSettings) -> Tokens:
    """Return the columns of a row of logits [n], ascending, that settings other than greedy leave to be drawn from.

    Temperature, then top-k, then top-p, as transformers' warpers do it one after the other. Raises ValueError for
    logits that are not finite.
    """
    row = logits.astype(np.float64) / settings.temperature
    peak = float(row.max())
    if not np.isfinite(peak):
        raise ValueError("logits are not finite; the model's weights or inputs are broken")
    columns = np.arange(len(row))
    if 0 < settings.top_k < len(row):
        columns = np.flatnonzero(row >= np.partition(row, -settings.top_k)[-settings.top_k])
    if settings.top_p < 1.0:
        columns = _nucleus(columns, np.exp(row[columns] - peak), settings.top_p)
    return columns


def _nucleus(columns: Tokens, weights: Row, top_p: float) -> Tokens:
    """Drop the least likely columns, of equals the lower first, while together they have at most 1 - `top_p`."""
    chances = weights / weights.sum()
    # So many so small ones are dropped in any case; they need no sorting, and a vocabulary holds little else.
    tiny = chances <= 0.5 * (1.0 - top_p) / len(chances)
    known = float(chances[tiny].sum())
    columns, chances = columns[~tiny], chances[~tiny]
    order = np.argsort(chances, kind="stable")
    kept = known + np.cumsum(chances[order]) > 1.0 - top_p
    kept[-1] = True
    return np.sort(columns[order[kept]])


@dataclass(frozen=True, eq=False)
class Distribution:
    """What a token is drawn from, as both sides know it to the last bit: `weights` of all tokens over their `total`.

    The weights are float32 [vocabulary], so that they can be sent as they are, 0 for tokens that may not be drawn.
    """

    weights: npt.NDArray[np.float32]
    total: float

    @classmethod
    def of(cls, logits: Logits, settings: SamplingSettings) -> Distribution:
        """Return what settings other than greedy make of logits [vocabulary]. Raises as `support`."""
        columns = support(logits, settings)
        shifted = logits[columns].astype(np.float64) / settings.temperature
        weights = np.zeros(len(logits), dtype=np.float32)
        weights[columns] = np.exp(shifted - shifted.max())
        return cls(weights, float(weights.sum(dtype=np.float64)))

    @cached_property
    def row(self) -> Row:
        """The probabilities [vocabulary]."""
        row: Row = self.weights.astype(np.float64) / self.total
        return row


def noised(
    logits: Logits, settings: SamplingSettings, draws: StepDraws, ids: Tokens | None = None
) -> tuple[Tokens, Row]:
    """Return the columns that may be drawn, ascending, and their perturbed logits: logits + temperature x noise.

    In this unit, the logits' own, temperature 0 leaves the logits as they are: greedy. Noise is hashed for these
    columns only. `ids` are the tokens of the columns (ascending), where the row is no whole vocabulary. Raises as
    `support`.
    """
    if settings.greedy:
        return np.arange(len(logits)), logits.astype(np.float64)
    columns = support(logits, settings)
    if ids is None and len(columns) == len(logits):
        bits = all_random_bits(len(logits), draws)
    else:
        bits = random_bits(columns if ids is None else ids[columns], draws)
    return columns, logits[columns].astype(np.float64) + settings.temperature * gumbel(bits)


def perturbed(logits: Logits, settings: SamplingSettings, draws: StepDraws) -> Logits:
    """Return a whole row of logits [vocabulary] perturbed: its argmax is the sample, its order ranks the alternatives.

    Tokens that may not be drawn are -inf. Greedy returns the row itself. Raises as `support`.
    """
    if settings.greedy:
        return logits
    columns, values = noised(logits, settings, draws)
    row = np.full(len(logits), -np.inf)
    row[columns] = values
    return row


def choose(
    logits: Logits, settings: SamplingSettings, draws: StepDraws, ids: Tokens | None = None
) -> tuple[int, float]:
    """Return the column drawn from a row of logits, of equals the lowest, and its softmax among the perturbed logits.

    That number is the probability that the column would stay the best if every perturbed logit were disturbed once
    more by standard Gumbel noise: how likely another model, whose logits differ but whose noise is the same, draws the
    same. For greedy it is the plain softmax. Raises as `support`.
    """
    columns, values = noised(logits, settings, draws, ids)
    best = int(np.argmax(values))
    return int(columns[best]), 1.0 / float(np.exp(values - values[best]).sum())
