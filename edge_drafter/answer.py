"""Keeps the committed answer of one step: the only tokens that the edge acts on.

A digest covers a commit's tokens and nothing else of it. So the tokens alone decide where the answer ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from speculation.wire import Commit, extend_digest

HELD_COMMITS = 64


class Contradiction(RuntimeError):
    """A commit that does not belong to this answer; acting on it would be acting on another frame or prompt."""


class Answer:
    """Committed tokens with the digest of their prefix. Commits may arrive twice, overlap or come out of order."""

    def __init__(self, begin: bytes, ends: Collection[int], max_tokens: int, committed: Sequence[int] = ()) -> None:
        """`begin` is the digest of what is asked, and how: see `StepRequest.digest`."""
        self.ends = frozenset(ends)
        """Tokens that end the answer."""
        self._max_tokens = max_tokens
        self._held: dict[int, Commit] = {}
        self.tokens: list[int] = list(committed)
        self.digest = extend_digest(begin, self.tokens)
        self.done = self._is_over(self.position)

    @property
    def position(self) -> int:
        """Answer position of the next token."""
        return len(self.tokens)

    @property
    def room(self) -> int:
        """How many tokens may still come."""
        return max(0, self._max_tokens - self.position)

    def take(self, commit: Commit) -> list[tuple[Commit, list[int]]]:
        """Append what `commit`, and commits held for it, add; return each with its new tokens.

        A commit whose first token is left to the edge to sample (`rests`) may add none.

        A commit ahead of the answer is held, at most `HELD_COMMITS` of them, the nearest first; not one that leaves a
        token to the edge, which is large and is sent again for the draft that it answers. Raises Contradiction for a
        commit about another prefix, with tokens beyond the answer's end, or that calls complete what is not.
        """
        if commit.rest is not None and commit.start > self.position:
            return []
        known = self._held.get(commit.start)
        if known is None or len(known.tokens) <= len(commit.tokens):
            self._held[commit.start] = commit
        while len(self._held) > HELD_COMMITS:
            del self._held[max(self._held)]
        taken = []
        while self._held and (start := min(self._held)) <= self.position:
            nearest = self._held.pop(start)
            tokens = self._append(nearest)
            if tokens or self.rests(nearest):
                taken.append((nearest, tokens))
        return taken

    def rests(self, commit: Commit) -> bool:
        """Whether the answer's next token is to be sampled from `commit.rest`."""
        ends = commit.start + len(commit.tokens)
        return commit.rest is not None and ends == self.position and not self.done

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens that need no commit: those of a model that answers alone."""
        self.tokens += tokens
        self.digest = extend_digest(self.digest, list(tokens))
        self.done = self._is_over(self.position)

    def _append(self, commit: Commit) -> list[int]:
        end = commit.start + len(commit.tokens)
        known = self.position - commit.start
        if commit.tokens[:known] != self.tokens[commit.start : end]:
            raise Contradiction(
                f"the verifier took back tokens that it had committed at answer position {commit.start}"
            )
        tokens = commit.tokens[known:]
        if end >= self.position and extend_digest(self.digest, tokens) != commit.digest:
            raise Contradiction(
                f"the commit at answer position {commit.start} is about another prompt, image or answer"
            )
        if tokens:
            self._check_end(tokens)
            self.append(tokens)
        if commit.done and not self._is_over(end):
            raise Contradiction(
                f"the verifier calls the answer complete at position {end}, but no end token stands there and "
                f"max_tokens is {self._max_tokens}; were edge and verifier installed from the same version?"
            )
        return tokens

    def _check_end(self, tokens: Sequence[int]) -> None:
        """Raise Contradiction where the answer is over before the last of `tokens`."""
        if self.done or any(token in self.ends for token in tokens[:-1]):
            raise Contradiction(f"the verifier committed tokens after the answer's end, at position {self.position}")
        if len(tokens) > self.room:
            end = self.position + len(tokens)
            raise Contradiction(f"the verifier committed {end} tokens, the answer has at most {self._max_tokens}")

    def _is_over(self, end: int) -> bool:
        """Whether the answer is complete with its first `end` tokens."""
        return end >= self._max_tokens or (end > 0 and self.tokens[end - 1] in self.ends)
