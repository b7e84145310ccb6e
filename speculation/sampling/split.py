"""Rejection sampling, split between edge and cloud (DSSD). Its authors name a filed patent, CN2025108856278."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from speculation.acceptance import Rest
from speculation.sampling.distribution import Distribution
from speculation.sampling.masses import unpack
from speculation.sampling.rejection import Drawn, RejectionScheme, TargetRest, draw_rest
from speculation.wire import Draft, Masses

PATENT_NOTE = "the authors of DSSD name a filed patent on split verification, CN2025108856278; see docs/decoding.md"


class Split(RejectionScheme, frozen=True):
    """The probabilities q(x) of the chosen tokens go up. After a rejection the target's p comes down whole, and the
    edge, which kept q, samples what follows (DSSD, Sec. 3)."""

    name: ClassVar[str] = "split"
    field: ClassVar[str] = "chosen"
    note: ClassVar[str] = PATENT_NOTE

    def prove(self, draft: Draft, sources: Sequence[Distribution]) -> Draft:
        pairs = zip(draft.tokens, sources, strict=True)
        return msgspec.structs.replace(draft, chosen=[float(source.row[token]) for token, source in pairs])

    def drawn(self, draft: Draft, vocabulary: int) -> tuple[Drawn, ...]:
        return tuple(Drawn(chance) for chance in draft.chosen)

    def rest(self, target: Distribution) -> Rest:
        return TargetRest(target)

    def finish(self, rest: Masses, source: Distribution, digest: bytes) -> int | None:
        return draw_rest(unpack(rest, len(source.weights)), source, digest)
