"""The draft model beside the target as a draft source: it drafts in the verifier, the edge only asks for it."""

from __future__ import annotations

import msgspec

from edge_drafter.sources import DraftSource
from speculation.wire import BeginStep


class ServerSource(DraftSource):
    """Has the verifier draft by itself (SpecEdge's baseline "server-only"): `gamma` tokens per verification, or a tree
    of `tokens` in `gamma` levels (SpecEdge, Appendix C)."""

    def __init__(self, gamma: int, tokens: int = 0) -> None:
        self._gamma = gamma
        self._tokens = tokens

    def announce(self, begin: BeginStep) -> BeginStep:
        if not (self._gamma and self._tokens):
            return msgspec.structs.replace(begin, self_draft=self._gamma)
        return msgspec.structs.replace(begin, self_draft=self._tokens, self_depth=self._gamma)
