"""A synthetic source of facts: acceptance and exit agreement drawn to match a paper's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.clocked.facts import Facts, Recording

EOS = 1
FIRST_WORD, VOCABULARY = 256, 512
"""Tokens are words of three bytes on the wire, as most of a real vocabulary's are."""
LEAST = 1e-6


@dataclass(frozen=True)
class Synthetic:
    """How facts are drawn.

    tokens: n, the length of every answer. acceptance: the chance that the draft's likeliest token is the target's, or
    one for each place of the answer (taken in turn). second: the chance that its second one is where the first is
    wrong. miss: the chance that no exit's verdict is the target's. mean_exit: the mean layer of the first exit whose
    verdict is, where one is; all later ones then agree too, earlier ones name something wrong. exits: the layers with
    an exit; empty for all but the last of `layers`. sharpness, exit_sharpness: how well draft and exits know whether
    they are right, 0.5 (not at all) to 1 (always). variety: the chance that an exit which is wrong names something else
    than the exit before it did; 0: all that are wrong name the same.

    Confidences are calibrated: a signal says right or wrong and is itself right in `sharpness` of the cases; the
    confidence is the probability given that signal (Bayes), so of all tokens with confidence c a share c is right. At
    0.5 every token has the mean. The first agreeing exit is binomial over the exits, tilted to the mean.
    """

    tokens: int = 200
    acceptance: float | tuple[float, ...] = 0.727
    second: float = 0.0
    miss: float = 0.556
    mean_exit: float = 8.0
    layers: int = 28
    exits: tuple[int, ...] = ()
    sharpness: float = 0.5
    exit_sharpness: float = 0.9
    variety: float = 0.0
    image_bytes: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("second", "miss", "sharpness", "exit_sharpness", "variety"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"synthetic source: {name} = {getattr(self, name)} is outside 0 to 1")
        if not all(0.0 <= each <= 1.0 for each in self.rates):
            raise ValueError(f"synthetic source: acceptance = {self.acceptance} is outside 0 to 1")
        if not 1 <= self.tokens <= 512:
            raise ValueError(f"synthetic source: tokens = {self.tokens} is outside 1 to 512")
        layers = self.exit_layers
        if (
            self.layers < 1
            or any(not 0 <= layer < self.layers - 1 for layer in layers)
            or list(layers) != sorted(set(layers))
        ):
            raise ValueError(f"synthetic source: exits {layers} must rise within 0 to {self.layers - 2}")
        if layers and self.miss < 1.0 and not layers[0] <= self.mean_exit <= layers[-1]:
            raise ValueError(
                f"synthetic source: mean_exit = {self.mean_exit} is outside the exits, {layers[0]} to {layers[-1]}"
            )

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by place."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)

    @property
    def exit_layers(self) -> tuple[int, ...]:
        """The layers with an exit, from 0."""
        return self.exits or tuple(range(self.layers - 1))

    def draw(self, steps: int) -> Recording:
        """Return the facts of so many steps; the same settings draw the same facts."""
        dice = np.random.default_rng([self.seed, 7])
        return Recording(
            tuple(self._step(number, dice) for number in range(steps)),
            VOCABULARY,
            (EOS,),
            self.layers,
            self.exit_layers,
            self.tokens,
            notes={"synthetic": repr(self)},
        )

    def _step(self, number: int, dice: np.random.Generator) -> Facts:
        n = self.tokens
        tokens = dice.integers(FIRST_WORD, VOCABULARY, n)
        tokens[-1] = EOS
        rates = np.resize(np.array(self.rates), n)
        right = dice.random(n) < rates
        chance = _calibrated(right, rates, self.sharpness, dice)
        saved = ~right & (dice.random(n) < self.second)
        first = np.where(right, tokens, _other(tokens, 1, dice))
        second = np.where(saved, tokens, _other(tokens, 2, dice))
        likely = np.maximum(chance, LEAST)
        less = np.clip((1.0 - chance) * self.second, LEAST / 2, 0.999 * likely)
        agrees, confidences = self._exits(n, dice)
        return Facts(
            f"synthetic step {number}",
            self.image_bytes,
            tuple(tokens.tolist()),
            np.stack([first, second], axis=1),
            np.stack([likely, less], axis=1),
            chance[:, None],
            agrees=agrees,
            confidences=confidences,
            wrongs=np.cumsum(dice.random(agrees.shape) < self.variety, axis=1) if self.variety else None,
        )

    def _exits(self, n: int, dice: np.random.Generator) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        layers = self.exit_layers
        if not layers:
            return np.zeros((n, 0), dtype=bool), np.zeros((n, 0))
        weights = tilted(layers, self.mean_exit) if self.miss < 1.0 else np.full(len(layers), 1.0 / len(layers))
        first = dice.choice(len(layers), n, p=weights)
        first[dice.random(n) < self.miss] = len(layers)
        agrees = np.arange(len(layers))[None, :] >= first[:, None]
        rates = np.broadcast_to((1.0 - self.miss) * np.cumsum(weights), agrees.shape)
        return agrees, _calibrated(agrees, rates, self.exit_sharpness, dice)


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
    right: npt.NDArray[np.bool_], rates: npt.NDArray[np.float64], sharpness: float, dice: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the probability of being right that a signal of this sharpness leaves, given the rate before it."""
    says = right == (dice.random(right.shape) < sharpness)
    like_right = np.where(says, sharpness, 1.0 - sharpness)
    like_wrong = np.where(says, 1.0 - sharpness, sharpness)
    whole = rates * like_right + (1.0 - rates) * like_wrong
    return np.divide(rates * like_right, whole, out=np.zeros(right.shape), where=whole > 0.0)


def _other(tokens: npt.NDArray[np.int64], salt: int, dice: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return a word for each token that is another one; words of two salts differ, too."""
    words = VOCABULARY - FIRST_WORD
    shift = 2 * dice.integers(0, words // 2 - 1, len(tokens)) + salt
    return FIRST_WORD + (tokens - FIRST_WORD + shift) % words
