"""Rejection sampling, split, of which only the head travels (PicoSpec, Sec. 3.3, made exact)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from speculation.acceptance import Rest
from speculation.sampling.distribution import Distribution
from speculation.sampling.masses import listed, unpack
from speculation.sampling.rejection import Purpose, TargetRest, draw, draw_rest, uniform
from speculation.sampling.split import Split
from speculation.wire import Masses

MAX_KEEP = 4096
START_KEEP = 32
ROUNDING = 1e-9
"""Sums over a vocabulary differ by at most so much between one order of adding and another."""


class Sparse(Split, frozen=True):
    """As `Split`, but the head of the target's p comes down, with the mass of its tail: where that mass leaves open
    what is sampled, the edge fetches the rest."""

    name: ClassVar[str] = "sparse"

    keep: Annotated[
        int, Meta(ge=1, le=MAX_KEEP, description="so many of the target's likeliest tokens come down at first")
    ] = START_KEEP

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.keep <= MAX_KEEP:
            raise ValueError(f"sampling: keep is {self.keep}; give 1 to {MAX_KEEP}")

    def rest(self, target: Distribution) -> Rest:
        return TargetRest(target, self.keep)

    def finish(self, rest: Masses, source: Distribution, digest: bytes) -> int | None:
        if rest.tail:
            return draw_from_head(rest, source, digest)
        return draw_rest(unpack(rest, len(source.weights)), source, digest, self.keep)


def draw_from_head(masses: Masses, draft: Distribution, digest: bytes) -> int | None:
    """Return what `draw_rest` returns with the whole distribution, or None where the head of it leaves that open.

    The tail's share of the residual is at most its mass. So the draw is in the head, and known, where the number that
    decides is below the share that the head has then. Raises ValueError for tokens that the draft does not have.
    """
    ids, values = listed(masses, len(draft.weights), whole=False)
    rest = np.maximum(values / masses.total - draft.row[ids], 0.0)
    inside = float(rest.sum())
    # A rounding error of the sums must not decide: then the tail is fetched.
    if uniform(digest, Purpose.PART) * (inside + masses.tail + ROUNDING) >= inside * (1.0 - ROUNDING):
        return None
    return int(ids[draw(rest, digest, ids)[0]])
