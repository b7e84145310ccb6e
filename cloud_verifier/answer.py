"""Keeps the committed tokens of one step and the digest of every prefix, and says what may follow: by the answer's
grammar, or by the edge, where a verdict leaves the next token to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloud_verifier.tree import ForeignDraft
from speculation.acceptance import Rest
from speculation.language.grammar import Automaton, Constraint
from speculation.wire import ROOT, Draft, Masses, extend_digest

MAX_FETCHES = 8
"""Times that one distribution is sent whole: a short request for a large reply."""


class Answer:
    """The committed tokens of one step. Only `append` changes it."""

    def __init__(self, digest: bytes, max_tokens: int, eos: Collection[int], grammar: Automaton | None = None) -> None:
        """`digest` names the empty answer. `grammar`: its tokens must begin an answer of it; None: it is free."""
        self.tokens: list[int] = []
        self.digests = [digest]
        """Digests of the prefixes with 0, 1, 2, ... tokens."""
        self.max_tokens = max_tokens
        self._eos = frozenset(eos)
        self._grammar = grammar
        self._state = None if grammar is None else grammar.start(max_tokens)
        """Where in its grammar the answer stands; None: it has none, or has come to its end."""

    @property
    def position(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """Digest of all tokens, and of the question before them."""
        return self.digests[-1]

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return self.position >= self.max_tokens or (self.position > 0 and self.tokens[-1] in self._eos)

    @property
    def room(self) -> int:
        """Draft tokens that the next pass may accept: one token behind them is the target's own."""
        return self.max_tokens - self.position - 1

    @property
    def constraint(self) -> Constraint | None:
        """What the grammar allows behind the answer; None where it is free or complete."""
        return None if self._grammar is None or self._state is None else Constraint(self._grammar, self._state)

    def allowed(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens up to the first that may not follow, and up to one that ends the answer, that included."""
        end = next((place for place, token in enumerate(tokens) if token in self._eos), len(tokens))
        tokens, constraint = tuple(tokens[: end + 1]), self.constraint
        if constraint is None:
            return tokens
        masks = constraint.masks(tokens, range(ROOT, len(tokens) - 1))
        fit = (mask is not None and bool(mask[token]) for token, mask in zip(tokens, masks, strict=False))
        return tokens[: next((place for place, fits in enumerate(fit) if not fits), len(tokens))]

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens until the answer is done; what comes behind its end is left out."""
        for token in tokens:
            if self.done:
                return
            self.tokens.append(token)
            self.digests.append(extend_digest(self.digest, [token]))
            if self._grammar is not None and self._state is not None:
                self._state = self._grammar.next(self._state, token)


class OpenToken:
    """The token after the path of the verdict on a `round`, which only the edge can sample: the answer waits for it.

    Sampling schemes that reject by the draft's own distribution leave one (`speculation.acceptance.Rest`); greedy and
    coupled steps never have an open token.
    """

    def __init__(self, round: int, rest: Rest) -> None:
        self.round = round
        self._rest = rest
        self._fetches = 0

    @property
    def part(self) -> Masses:
        """Return the probabilities that go with the commit, from which the edge samples the token."""
        return self._rest.part

    def whole(self) -> Masses | None:
        """Return the whole distribution that the edge samples from; None where it has asked for that too often."""
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
