"""Tokens that a commit leaves to the edge, which sampled the draft and alone can sample what follows it."""

from __future__ import annotations

from edge_drafter.answer import Contradiction
from edge_drafter.step import Step
from speculation.sampling import DraftSampler
from speculation.wire import Commit, Fetch


class ResidualTokens:
    """What one step's commits leave to the edge. A scheme that leaves nothing makes no use of it."""

    def __init__(self, sampler: DraftSampler, step: Step) -> None:
        self.sampler = sampler
        self._answer = step.answer
        self._number = step.request.step
        self._stats = step.stats
        self._pending: list[int] = []
        """Committed tokens of a commit whose last token needs the whole distribution."""
        self._fetched_at = -1
        self._sampled_at = -1
        """Answer position of the last token that the edge sampled; the next draft carries it to the verifier."""

    @property
    def sampled_last(self) -> bool:
        """Whether the answer's last token was sampled here, so that the verifier does not have it yet."""
        return self._sampled_at == self._answer.position - 1 >= 0

    def complete(self, commit: Commit, tokens: list[int]) -> list[int] | Fetch:
        """Return a commit's tokens, with the one that it leaves to the edge, or the request for what that needs.

        Raises Contradiction for a commit that leaves a token which cannot be sampled.
        """
        answer = self._answer
        self._pending += tokens
        if commit.rest is not None and answer.rests(commit):
            try:
                token = self.sampler.finish(answer.digest, commit.rest)
            except ValueError as error:
                raise Contradiction(str(error)) from error
            if token is None:
                self._stats.fetches += self._fetched_at != answer.position
                self._fetched_at = answer.position
                return Fetch(self._number, answer.position, answer.digest)
            self._sampled_at = answer.position
            answer.append([token])
            self._pending.append(token)
        known, self._pending = self._pending, []
        return known
