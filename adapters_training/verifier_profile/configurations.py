"""Which passes are measured: the 123 of training and 50 of test of WISP, Appendix C."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.pass_cost import Load

LONGEST = 2000
"""Tokens of the longest row, and of the largest prefill, in the paper."""
TOTALS = (1200, 1400, 1600, 1800, 2000)
SPLITS = ((1,), (1, 1), (1, 1, 1, 1), (4, 2, 1, 1), (5, 3))
"""Shares of a prefill's rows: single, split-2, split-4, varied, varied."""
NEW, CACHED_TOTALS, BATCHES = (1, 5, 10, 20, 50, 100), (500, 1000, 1500, 2000), (1, 4)
RANDOM, MIXED = 15, 20
TEST_COMPUTE, TEST_MEMORY, TEST_MIXED = 17, 17, 16


@dataclass(frozen=True)
class Configuration:
    """One pass: (new, cached) tokens of each of its rows."""

    rows: tuple[tuple[int, int], ...]

    @property
    def load(self) -> Load:
        """What it computes."""
        return Load.total(Load.row(new, cached) for new, cached in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of its longest row, cached ones included."""
        return max(new + cached for new, cached in self.rows)

    def scaled(self, share: float) -> Configuration:
        """Return it with every length multiplied; a row feeds at least a token."""
        return Configuration(tuple((max(1, int(share * new)), int(share * cached)) for new, cached in self.rows))


def training() -> list[Configuration]:
    """Return the 123 configurations of training: 25 and 48 on a grid, 15, 15 and 20 random ones, always the same."""
    rng = random.Random("training")
    return [
        *(_prefills(total, shares) for total in TOTALS for shares in SPLITS),
        *(Configuration(((new, total - new),) * batch) for new in NEW for total in CACHED_TOTALS for batch in BATCHES),
        *(_random_prefills(rng) for _ in range(RANDOM)),
        *(_random_verifications(rng) for _ in range(RANDOM)),
        *(_random_mixed(rng) for _ in range(MIXED)),
    ]


def held_out() -> list[Configuration]:
    """Return the 50 configurations of the test, none of which is in training."""
    rng = random.Random("test")
    return [
        *(_random_prefills(rng) for _ in range(TEST_COMPUTE)),
        *(_random_verifications(rng) for _ in range(TEST_MEMORY)),
        *(_random_mixed(rng) for _ in range(TEST_MIXED)),
    ]


def fitted(configurations: Sequence[Configuration], longest: int) -> list[Configuration]:
    """Return them with all lengths scaled alike where a row may hold only `longest` tokens."""
    share = min(1.0, longest / max(each.longest for each in configurations))
    return [each.scaled(share) for each in configurations] if share < 1.0 else list(configurations)


def _prefills(total: int, shares: Sequence[int]) -> Configuration:
    return Configuration(tuple((total * share // sum(shares), 0) for share in shares))


def _random_prefills(rng: random.Random) -> Configuration:
    return _prefills(rng.randint(TOTALS[0], TOTALS[-1]), [rng.randint(1, 5) for _ in range(rng.randint(1, 4))])


def _random_verifications(rng: random.Random) -> Configuration:
    return Configuration(tuple(_verification(rng) for _ in range(rng.randint(1, 4))))


def _random_mixed(rng: random.Random) -> Configuration:
    prompts = [(rng.randint(100, 800), 0) for _ in range(rng.randint(1, 2))]
    return Configuration(tuple(prompts + [_verification(rng) for _ in range(rng.randint(1, 3))]))


def _verification(rng: random.Random) -> tuple[int, int]:
    new = rng.randint(1, 100)
    return new, rng.randint(CACHED_TOTALS[0], CACHED_TOTALS[-1]) - new
