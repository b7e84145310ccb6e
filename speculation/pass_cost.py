"""What one target forward computes, and what that costs: the additive model of WISP (Sec. 4.4, Eq. 18 and 19).

No torch: a scheduler predicts with it, virtual time waits for it, a command measures it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a pass computes, summed over its rows."""

    rows: int = 0
    """Sessions that share it."""
    new: int = 0
    """Tokens that are fed: N_linear = sum of L_new."""
    interactions: int = 0
    """Query-key pairs: N_interactions = sum of L_total x L_new, L_total = L_cached + L_new."""
    cached: int = 0
    """Tokens whose keys and values are read: N_cached = sum of L_cached."""

    @classmethod
    def row(cls, new: int, cached: int = 0) -> Load:
        """Return the load of one session that feeds `new` tokens behind `cached` ones."""
        return cls(1, new, (cached + new) * new, cached)

    @classmethod
    def total(cls, loads: Iterable[Load]) -> Load:
        """Return the load of a pass over all of these."""
        return sum(loads, NO_LOAD)

    def __add__(self, other: Load) -> Load:
        """Return the load of both in one pass."""
        return Load(
            self.rows + other.rows,
            self.new + other.new,
            self.interactions + other.interactions,
            self.cached + other.cached,
        )

    def __sub__(self, other: Load) -> Load:
        """Return what else is in a pass with this load."""
        return Load(
            self.rows - other.rows,
            self.new - other.new,
            self.interactions - other.interactions,
            self.cached - other.cached,
        )


NO_LOAD = Load()


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass: a N_linear + b_c N_interactions + b_r N_cached + c. Coefficients are 0 or more."""

    token_s: float
    """a, seconds a fed token."""
    interaction_s: float
    """b_compute, seconds a query-key pair."""
    cached_s: float
    """b_read, seconds a cached token."""
    constant_s: float
    """c, seconds a pass."""

    def seconds(self, load: Load) -> float:
        """Return the predicted seconds of a pass."""
        return (
            self.token_s * load.new
            + self.interaction_s * load.interactions
            + self.cached_s * load.cached
            + self.constant_s
        )
