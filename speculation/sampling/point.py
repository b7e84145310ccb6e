"""The point-mass rule: the target samples, the draft proposes its likeliest tokens."""

from __future__ import annotations

from typing import ClassVar

from speculation.distributions import Logits
from speculation.sampling.coupled import Coupled
from speculation.sampling.distribution import choose
from speculation.sampling.noise import StepDraws, Tokens
from speculation.sampling.scheme import SamplingScheme


class Point(SamplingScheme, frozen=True):
    """Accept a node while it is what the target itself samples there, as `Coupled` does, but draft without the noise.

    For a deterministic proposal this is rejection sampling: a token x is accepted with the target's probability p(x),
    and what follows a rejection is sampled from p without x.
    """

    name: ClassVar[str] = "point"
    on_device: ClassVar[bool] = True

    @property
    def alone(self) -> SamplingScheme:
        """Coupled sampling: without a verifier the model itself has to sample."""
        return Coupled(self.temperature, self.top_k, self.top_p)

    def pick(self, row: Logits, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
        return choose(row, self, draws, ids)
