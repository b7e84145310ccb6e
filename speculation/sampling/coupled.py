"""Coupled sampling: both sides perturb their logits with the same noise, so a draft token is right iff it is equal."""

from __future__ import annotations

from typing import Any, ClassVar

from speculation.distributions import Logits
from speculation.sampling.distribution import choose, perturbed
from speculation.sampling.greedy import Greedy
from speculation.sampling.noise import StepDraws, Tokens
from speculation.sampling.scheme import DraftSampler, Prefix, SamplingScheme


class Coupled(SamplingScheme, frozen=True):
    """Accept a node while it is what the target itself samples there (Daliri, Musco, Suresh, Coupling without
    Communication and Drafter-Invariant Speculative Decoding, arXiv 2408.07978).

    The sample at an answer position is the argmax of logits + noise, and the noise is a hash of key, position and token
    (`speculation.sampling.noise`): it does not depend on the draft. So in a tree all siblings at a depth are compared
    with one sample, only tokens cross the link, and the answer is the target's own with that key, whatever was drafted.

    The confidence of a verdict is the softmax of the perturbed logits (see `distribution.choose`), multiplied as for
    greedy verdicts. For an exit it is only a score that `ExitHeads.reliability` turns into a rate; the tables of exits
    are measured on greedy verdicts.
    """

    name: ClassVar[str] = "coupled"
    on_device: ClassVar[bool] = True

    @classmethod
    def of(cls, **fields: Any) -> SamplingScheme:
        """Return this scheme or, for temperature 0, which is its limit, `Greedy`."""
        if fields["temperature"] == 0.0:
            cls(**(fields | {"temperature": 1.0}))
            return Greedy()
        return cls(**fields)

    def sampler(self, key: int) -> DraftSampler:
        return CoupledSampler(self, key)

    def pick(self, row: Logits, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
        return choose(row, self, draws, ids)


class CoupledSampler(DraftSampler):
    """Ranks draft tokens by their perturbed logits, each row at its own answer position.

    So the likeliest token is what the draft model itself samples with this key, and its siblings come in the order in
    which the target, whose noise is the same, is likely to take them.
    """

    def __init__(self, scheme: SamplingScheme, key: int) -> None:
        self._scheme = scheme
        self._key = key

    def rank(self, logits: Logits, prefix: Prefix) -> Logits:
        return perturbed(logits, self._scheme, StepDraws(self._key, prefix.position))
