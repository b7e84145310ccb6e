"""Rejection sampling's half of a step on the edge: the evidence of a draft, and the token after a rejected one.

All that only rejection sampling needs is here and in `drawn`; a step without it makes none of these.
"""

from __future__ import annotations

import msgspec

from edge_drafter.answer import Contradiction
from edge_drafter.drawn import DrawnModel
from edge_drafter.step import Step
from speculation.wire import Commit, Draft, Fetch


class Rejecting:
    """What one step sampled its drafts from, and what it drew itself."""

    def __init__(self, drawn: DrawnModel, step: Step) -> None:
        self._model = drawn
        self._answer = step.answer
        self._number = step.request.step
        self._stats = step.stats
        self._pending: list[int] = []
        """Committed tokens of a commit whose last token needs the whole distribution."""
        self._fetched_at = -1
        self._drawn_at = -1
        """Answer position of the last token that the edge drew; the verifier learns it from the next draft."""

    @property
    def drew_last(self) -> bool:
        """Whether the answer's last token was drawn here, so that the verifier does not know it."""
        return self._drawn_at == self._answer.position - 1 >= 0

    def with_evidence(self, draft: Draft) -> Draft:
        """Return a chain's message with what the verifier needs to judge it.

        Raises ValueError for distributions that no message can take.
        """
        chosen, whole = self._model.evidence(draft.digest, draft.tokens)
        is_next = draft.start == self._answer.position and self.drew_last
        drawn = self._answer.tokens[-1] if is_next else None
        return msgspec.structs.replace(draft, chosen=chosen, whole=whole, drawn=drawn)

    def complete(self, commit: Commit, tokens: list[int]) -> list[int] | Fetch:
        """Return a commit's tokens, with the one that it leaves to the edge; what to ask for where that needs more.

        Raises Contradiction for a distribution that cannot be drawn from.
        """
        answer = self._answer
        self._pending += tokens
        if commit.rest is not None and answer.rests(commit):
            try:
                token = self._model.draw_rest(answer.digest, commit.rest)
            except ValueError as error:
                raise Contradiction(str(error)) from error
            if token is None:
                self._stats.fetches += self._fetched_at != answer.position
                self._fetched_at = answer.position
                return Fetch(self._number, answer.position, answer.digest)
            self._drawn_at = answer.position
            answer.append([token])
            self._pending.append(token)
        known, self._pending = self._pending, []
        return known
