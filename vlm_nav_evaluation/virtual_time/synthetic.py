"""A synthetic recording: acceptance and exit agreement sampled to match a paper's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording

EOS = 1
FIRST_WORD, VOCABULARY = 256, 512
"""Tokens are words of three bytes on the wire, as most of a real vocabulary's are."""
LEAST = 1e-6


@dataclass(frozen=True)
class Synthetic:
    """How a synthetic recording is sampled. Raises ValueError, naming the field.

    Confidences are calibrated: a signal for right or wrong is itself right in `sharpness` of the cases; the confidence
    is the probability given that signal (Bayes), so of all tokens with confidence c a share c is right. At 0.5 every
    token has the mean. The first agreeing exit is binomial over the exits, tilted to the mean.
    """

    tokens: int = 200
    """n, the length of every answer."""
    acceptance: float | tuple[float, ...] = 0.727
    """The chance that the draft's likeliest token is the target's, or one for each place of the answer, in turn."""
    second: float = 0.0
    """The chance that its second one is, where the first is wrong."""
    miss: float = 0.556
    """The chance that no exit's verdict is the target's."""
    mean_exit: float = 8.0
    """Mean layer of the first exit whose verdict is right, where one is. All later ones then agree, earlier ones do
    not."""
    layers: int = 28
    exits: tuple[int, ...] = ()
    """Layers with an exit; empty for all but the last of `layers`."""
    sharpness: float = 0.5
    """How well the draft knows whether it is right: 0.5 (not at all) to 1 (always)."""
    exit_sharpness: float = 0.9
    """How well an exit's confidence tells whether its verdict is right, as `sharpness`."""
    image_bytes: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        layers = self.exit_layers
        rise = self.layers >= 1 and list(layers) == sorted({layer for layer in layers if 0 <= layer < self.layers - 1})
        named = not layers or self.miss >= 1.0 or layers[0] <= self.mean_exit <= layers[-1]
        shares = ("second", "miss", "sharpness", "exit_sharpness")
        limits = {name: (0.0 <= getattr(self, name) <= 1.0, "outside 0 to 1") for name in shares}
        limits["acceptance"] = (all(0.0 <= each <= 1.0 for each in self.rates), "outside 0 to 1")
        limits["tokens"] = (1 <= self.tokens <= 512, "outside 1 to 512")
        limits["exits"] = (rise, f"not rising within 0 to {self.layers - 2}")
        limits["mean_exit"] = (named, "outside the exits")
        for name, (fits, why) in limits.items():
            if not fits:
                raise ValueError(f"synthetic recording: {name} = {getattr(self, name)} is {why}")

    @property
    def rates(self) -> tuple[float, ...]:
        """Return the acceptance by place."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)

    @property
    def exit_layers(self) -> tuple[int, ...]:
        """Return the layers with an exit, from 0."""
        return self.exits or tuple(range(self.layers - 1))

    def draw(self, steps: int) -> Recording:
        """Return so many steps; the same settings give the same ones."""
        random = np.random.default_rng([self.seed, 7])
        every = tuple(self._step(number, random) for number in range(steps))
        notes = {"synthetic": repr(self)}
        return Recording(every, VOCABULARY, (EOS,), self.layers, self.exit_layers, self.tokens, notes=notes)

    def _step(self, number: int, random: np.random.Generator) -> RecordedStep:
        n = self.tokens
        tokens = random.integers(FIRST_WORD, VOCABULARY, n)
        tokens[-1] = EOS
        rates = np.resize(np.array(self.rates), n)
        drafted, likely, chance = self._draft(tokens, random.random(n) < rates, rates, random)
        agrees, confidences = self._exits(n, random)
        return RecordedStep(
            f"synthetic step {number}", self.image_bytes, tuple(tokens.tolist()), drafted, likely, chance[:, None],
            agrees=agrees, confidences=confidences,
        )  # fmt: skip

    def _draft(
        self,
        tokens: npt.NDArray[np.int64],
        right: npt.NDArray[np.bool_],
        rates: npt.NDArray[np.float64],
        random: np.random.Generator,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return first and second choices [n, 2], their probabilities [n, 2], and the first's as calibrated [n]."""
        chance = _calibrated(right, rates, self.sharpness, random)
        saved = ~right & (random.random(len(tokens)) < self.second)
        first = np.where(right, tokens, _other(tokens, 1, random))
        second = np.where(saved, tokens, _other(tokens, 2, random))
        likely = np.maximum(chance, LEAST)
        less = np.clip((1.0 - chance) * self.second, LEAST / 2, 0.999 * likely)
        return np.stack([first, second], axis=1), np.stack([likely, less], axis=1), chance

    def _exits(self, n: int, random: np.random.Generator) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        layers = self.exit_layers
        if not layers:
            return np.zeros((n, 0), dtype=bool), np.zeros((n, 0))
        weights = tilted(layers, self.mean_exit) if self.miss < 1.0 else np.full(len(layers), 1.0 / len(layers))
        first = random.choice(len(layers), n, p=weights)
        first[random.random(n) < self.miss] = len(layers)
        agrees = np.arange(len(layers))[None, :] >= first[:, None]
        rates = np.broadcast_to((1.0 - self.miss) * np.cumsum(weights), agrees.shape)
        return agrees, _calibrated(agrees, rates, self.exit_sharpness, random)


def tilted(layers: tuple[int, ...], mean: float) -> npt.NDArray[np.float64]:
    """Return binomial weights over `layers`, tilted exponentially so that their mean layer is `mean`.

    Over layers at equal distances that is a binomial distribution.
    """
    places = np.array(layers, dtype=float)
    base = np.array([math.lgamma(len(layers)) - math.lgamma(i + 1) - math.lgamma(len(layers) - i)
                     for i in range(len(layers))])  # fmt: skip
    low, high = -50.0, 50.0
    weights = np.zeros(len(layers))
    for _ in range(200):
        tilt = (low + high) / 2
        score = base + tilt * places
        weights = np.exp(score - score.max())
        weights /= weights.sum()
        low, high = (tilt, high) if float(weights @ places) < mean else (low, tilt)
    return weights


def _calibrated(
    right: npt.NDArray[np.bool_], rates: npt.NDArray[np.float64], sharpness: float, random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the probability of being right that a signal of this sharpness leaves, given the rate before it."""
    signal = right == (random.random(right.shape) < sharpness)
    like_right = np.where(signal, sharpness, 1.0 - sharpness)
    like_wrong = np.where(signal, 1.0 - sharpness, sharpness)
    whole = rates * like_right + (1.0 - rates) * like_wrong
    return np.divide(rates * like_right, whole, out=np.zeros(right.shape), where=whole > 0.0)


def _other(tokens: npt.NDArray[np.int64], salt: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return a word for each token that is another one; words of two salts differ, too."""
    words = VOCABULARY - FIRST_WORD
    shift = 2 * random.integers(0, words // 2 - 1, len(tokens)) + salt
    return FIRST_WORD + (tokens - FIRST_WORD + shift) % words
