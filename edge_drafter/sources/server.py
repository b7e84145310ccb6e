"""The draft model beside the target as a draft source: it drafts in the verifier, the edge only asks for it."""

from __future__ import annotations

import msgspec

from edge_drafter.sources import DraftSource
from speculation.wire import BeginStep


class ServerSource(DraftSource):
    """Has the verifier draft `gamma` tokens per verification by itself (SpecEdge's baseline "server-only")."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def announce(self, begin: BeginStep) -> BeginStep:
        """See `DraftSource.announce`."""
        return msgspec.structs.replace(begin, self_draft=self._gamma)
