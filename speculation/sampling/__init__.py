"""How tokens are sampled: the table of all schemes, and what they share (numpy, no torch).

A new scheme is a file beside this one and an entry in `SCHEMES`, see `speculation.sampling.scheme`.
"""

from speculation.distributions import Logits
from speculation.sampling.coupled import Coupled
from speculation.sampling.distribution import Distribution, choose, noised, perturbed, support
from speculation.sampling.greedy import Greedy
from speculation.sampling.noise import FIRST_DRAWS, MAX_KEY, Floats, StepDraws, Tokens, question_key
from speculation.sampling.point import Point
from speculation.sampling.scheme import SCHEMES, AcceptanceRule, DraftSampler, Evidence, Prefix, SamplingScheme, form
from speculation.sampling.sparse import Sparse
from speculation.sampling.split import Split
from speculation.sampling.whole import Whole

SCHEMES.update({scheme.name: scheme for scheme in (Greedy, Coupled, Point, Whole, Split, Sparse)})

GREEDY = Greedy()

__all__ = [
    "FIRST_DRAWS",
    "GREEDY",
    "MAX_KEY",
    "SCHEMES",
    "AcceptanceRule",
    "Coupled",
    "Distribution",
    "DraftSampler",
    "Evidence",
    "Floats",
    "Greedy",
    "Logits",
    "Point",
    "Prefix",
    "SamplingScheme",
    "Sparse",
    "Split",
    "StepDraws",
    "Tokens",
    "Whole",
    "choose",
    "form",
    "noised",
    "perturbed",
    "question_key",
    "support",
]
