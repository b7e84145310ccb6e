"""From logits to what a token is sampled from: temperature, top-k, top-p, and the noise that samples (numpy, no torch).

A token is sampled as the argmax of logits + temperature x Gumbel noise: a sample of softmax(logits / temperature) (the
Gumbel-max trick).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from speculation.distributions import Logits
from speculation.sampling.noise import Floats, StepDraws, Tokens, gumbel_at, likeliest
from speculation.sampling.scheme import SamplingScheme


def support(logits: Logits, settings: SamplingScheme) -> Tokens:
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


def _nucleus(columns: Tokens, weights: Floats, top_p: float) -> Tokens:
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
    def of(cls, logits: Logits, settings: SamplingScheme) -> Distribution:
        """Return what settings other than greedy make of logits [vocabulary]. Raises as `support`."""
        columns = support(logits, settings)
        shifted = logits[columns].astype(np.float64) / settings.temperature
        weights = np.zeros(len(logits), dtype=np.float32)
        weights[columns] = np.exp(shifted - shifted.max())
        return cls(weights, float(weights.sum(dtype=np.float64)))

    @cached_property
    def row(self) -> Floats:
        """The probabilities [vocabulary]."""
        row: Floats = self.weights.astype(np.float64) / self.total
        return row


def noised(
    logits: Logits, settings: SamplingScheme, draws: StepDraws, ids: Tokens | None = None
) -> tuple[Tokens, Floats]:
    """Return the columns that may be drawn, ascending, and their perturbed logits: logits + temperature x noise.

    In this unit, the logits' own, temperature 0 leaves the logits as they are: greedy. Noise is hashed for these
    columns only. `ids` are the tokens of the columns (ascending), where the row is no whole vocabulary. Raises as
    `support`.
    """
    if settings.greedy:
        return np.arange(len(logits)), logits.astype(np.float64)
    columns = support(logits, settings)
    noise = gumbel_at(columns, len(logits), draws, ids)
    return columns, logits[columns].astype(np.float64) + settings.temperature * noise


def perturbed(logits: Logits, settings: SamplingScheme, draws: StepDraws) -> Logits:
    """Return a whole row of logits [vocabulary] perturbed: its argmax is the sample, its order ranks the alternatives.

    Tokens that may not be drawn are -inf. Greedy returns the row itself. Raises as `support`.
    """
    if settings.greedy:
        return logits
    columns, values = noised(logits, settings, draws)
    row = np.full(len(logits), -np.inf)
    row[columns] = values
    return row


def choose(logits: Logits, settings: SamplingScheme, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
    """Return the column drawn from a row of logits, of equals the lowest, and its softmax among the perturbed logits.

    That number is the probability that the column would stay the best if every perturbed logit were disturbed once
    more by standard Gumbel noise: how likely another model, whose logits differ but whose noise is the same, draws the
    same. For greedy it is the plain softmax. Raises as `support`.
    """
    columns, values = noised(logits, settings, draws, ids)
    best, probability = likeliest(values)
    return int(columns[best]), probability
