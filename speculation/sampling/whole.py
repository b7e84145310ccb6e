"""Rejection sampling in which the draft's whole distributions go up (DSD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from speculation.sampling.distribution import Distribution
from speculation.sampling.masses import listed, pack
from speculation.sampling.rejection import Drawn, RejectionScheme
from speculation.wire import MAX_DRAFT_TOKENS, MAX_IMAGE_BYTES, Draft, Masses


class Whole(RejectionScheme, frozen=True):
    """The draft's q goes up whole, and the verifier samples what follows a rejection (DSD)."""

    name: ClassVar[str] = "whole"
    field: ClassVar[str] = "whole"

    def draft_limit(self, vocabulary: int) -> int:
        """Return how many tokens a draft can carry whose distributions, in float32, fit one message."""
        return max(1, min(MAX_DRAFT_TOKENS, MAX_IMAGE_BYTES // (4 * vocabulary)))

    def prove(self, draft: Draft, sources: Sequence[Distribution]) -> Draft:
        whole = [pack(source) for source in sources]
        size = sum(len(each.weights) + len(each.ids) for each in whole)
        if size > MAX_IMAGE_BYTES:
            raise ValueError(
                f"sampling whole: the distributions of {len(draft.tokens)} draft tokens take {size / 1e6:.1f} MB, the "
                f"limit is {MAX_IMAGE_BYTES / 1e6:.1f} MB; draft fewer tokens (gamma), or set top_k or top_p"
            )
        return msgspec.structs.replace(draft, whole=whole)

    def drawn(self, draft: Draft, vocabulary: int) -> tuple[Drawn, ...]:
        def chance(masses: Masses, token: int) -> float:
            ids, values = listed(masses, vocabulary)
            return float(values[ids == token].sum()) / masses.total

        pairs = zip(draft.tokens, draft.whole, strict=True)
        return tuple(Drawn(chance(masses, token), masses, vocabulary) for token, masses in pairs)
