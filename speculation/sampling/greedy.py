"""Greedy decoding: the likeliest token."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from speculation.distributions import Logits
from speculation.sampling.noise import StepDraws, Tokens, likeliest
from speculation.sampling.scheme import SamplingScheme


class Greedy(SamplingScheme, frozen=True):
    """Accept a node while it is its parent's likeliest next token (Leviathan et al., arXiv 2211.17192, temperature 0).

    Ties go to the lowest token id.
    """

    name: ClassVar[str] = "greedy"
    random: ClassVar[bool] = False
    on_device: ClassVar[bool] = True

    def pick(self, row: Logits, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
        """Return the likeliest column and its softmax."""
        return likeliest(row.astype(np.float64))
