"""Takes the answer's next token from the edge where a verdict left it to it: the answer waits for the draft with it.

Sampling schemes that reject by the draft's own distribution do that (`speculation.acceptance.Rest`); greedy and coupled
steps never have an open token.
"""

from __future__ import annotations

from cloud_verifier.tree import ForeignDraft
from speculation.acceptance import Rest
from speculation.wire import Draft, Masses, extend_digest

MAX_FETCHES = 8
"""Times that one distribution is sent whole: a short request for a large reply."""


class OpenToken:
    """The token after the path of the verdict on a `round`, which only the edge can sample."""

    def __init__(self, round: int, rest: Rest) -> None:
        self.round = round
        self._rest = rest
        self._fetches = 0

    @property
    def part(self) -> Masses:
        """What the edge gets with the commit to sample it from."""
        return self._rest.part

    def whole(self) -> Masses | None:
        """Return all of what it is to be sampled from; None where the edge has asked for that too often."""
        if self._fetches == MAX_FETCHES:
            return None
        self._fetches += 1
        return self._rest.whole

    def brought_by(self, draft: Draft, position: int, digest: bytes) -> int | None:
        """Return the token at answer position `position` where this draft brings it; None where it does not.

        `digest` names the answer before it. Raises ForeignDraft for a token that cannot have been sampled.
        """
        token = draft.drawn
        if token is None or draft.start != position + 1 or extend_digest(digest, [token]) != draft.digest:
            return None
        if not self._rest.allows(token):
            raise ForeignDraft(f"Draft.drawn {token} has no probability at answer position {position}")
        return token
