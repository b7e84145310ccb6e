"""What rejection sampling adds to a step. Greedy and coupled steps have none of it, and do not come here.

Each draft token comes with evidence: the probability that it was sampled with or, with `Rule.WHOLE`, the distribution.
The verifier may leave the token after a rejected one to the edge (`speculation.rejection`). Then the answer waits for
it: the next draft brings it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cloud_verifier.tree import ForeignDraft, Tree
from speculation.rejection import Drawn, pack
from speculation.sampling import Distribution, Rule, SamplingSettings
from speculation.wire import Draft, Masses, extend_digest

MAX_FETCHES = 8
"""Times that one distribution is sent whole: a short request for a large reply."""


class Evidence(NamedTuple):
    """What a row of rejection sampling is judged by."""

    digest: bytes
    """Of the answer: it names the random numbers of the verdict."""
    drawn: tuple[Drawn, ...]
    """How each draft token was sampled."""


class RejectionState:
    """The evidence of the drafts that a step holds, and the token that is left to the edge."""

    def __init__(self, sampling: SamplingSettings) -> None:
        self._keep = sampling.keep if sampling.rule is Rule.SPARSE else 0
        self._drawn: dict[int, tuple[Drawn, ...]] = {}
        self._target: Distribution | None = None
        self._whole: Masses | None = None
        self._fetches = 0
        self.round = 0
        """The round of the draft that was rejected."""
        self.rest: Masses | None = None
        """What the edge is to sample the answer's next token from, as much as its rule sends; None: nothing is left."""

    @property
    def waits(self) -> bool:
        """Whether the answer's next token is left to the edge."""
        return self._target is not None

    def hold(self, round: int, drawn: tuple[Drawn, ...]) -> None:
        """Keep the evidence of a draft."""
        self._drawn[round] = drawn

    def keep(self, rounds: Collection[int]) -> None:
        """Drop the evidence of all other rounds."""
        self._drawn = {round: drawn for round, drawn in self._drawn.items() if round in rounds}

    def evidence(self, digest: bytes, tree: Tree) -> Evidence:
        """Return the evidence of a tree behind the answer with this digest."""
        drawn = self._drawn.get(tree.round, ())
        return Evidence(digest, tuple(drawn[node] for node in tree.nodes) if drawn else ())

    def leave(self, round: int, target: Distribution) -> None:
        """Leave the next token to the edge, after the verdict on a round."""
        self._target, self._whole, self.round, self._fetches = target, None, round, MAX_FETCHES
        self.rest = pack(target, self._keep)

    def token_of(self, draft: Draft, position: int, digest: bytes) -> int | None:
        """Return the token at answer position `position` where it was left to the edge and this draft brings it.

        `digest` names the answer before it. Raises ForeignDraft for a token without probability.
        """
        token = draft.drawn
        if self._target is None or token is None or draft.start != position + 1:
            return None
        if extend_digest(digest, [token]) != draft.digest:
            return None
        if self._target.weights[token] <= 0.0:
            raise ForeignDraft(f"Draft.drawn {token} has no probability at answer position {position}")
        self._target = self._whole = self.rest = None
        return token

    def whole(self) -> Masses | None:
        """Return all of what the edge is to sample from; None where nothing is left to it or it has asked too often."""
        if self._target is None or self._fetches < 1:
            return None
        self._fetches -= 1
        self._whole = self._whole or pack(self._target)
        return self._whole
