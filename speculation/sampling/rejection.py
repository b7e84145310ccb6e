"""Rejection sampling: a chain of sampled tokens, the target's verdict, and what follows a rejection.

The rule (Leviathan et al., arXiv 2211.17192, Algorithm 1): a token x that the draft sampled from q stands with
probability min(1, p(x) / q(x)); where it does not, the next token is sampled from norm(max(0, p - q)); where all stand,
from p. So every token is a sample of the target's p. What travels is each form's own: `whole`, `split` and `sparse`.

Random numbers are hashes of the digest that names the prefix, and of what they are for. So a repeated message gives the
same, and nothing that an exit reveals about one prefix reveals anything about the numbers of another. What makes it
exact: a place is drafted once. A token is sampled before it is known whether it is sent, and all that is sampled up to
the end of a draft is sent, so a draft may end anywhere that earlier tokens of it decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np

from speculation.acceptance import Rest, Verdict
from speculation.distributions import Logits
from speculation.sampling.coupled import Coupled
from speculation.sampling.distribution import Distribution
from speculation.sampling.masses import head, pack, unpack
from speculation.sampling.noise import (
    FIRST_DRAWS,
    MAX_KEY,
    Floats,
    StepDraws,
    Tokens,
    gumbel_at,
    likeliest,
    random_bits,
    uniforms,
)
from speculation.sampling.scheme import AcceptanceRule, DraftSampler, Evidence, Prefix, SamplingScheme
from speculation.wire import ROOT, Draft, Idle, Masses, extend_digest


class Purpose(IntEnum):
    """What a random number behind a prefix decides."""

    DRAFT = 0
    ACCEPT = 1
    REST = 2
    PART = 3


def draws(digest: bytes, purpose: Purpose) -> StepDraws:
    """Return the name of the random numbers behind the prefix with this digest."""
    return StepDraws(int.from_bytes(digest, "little") & MAX_KEY, purpose)


def uniform(digest: bytes, purpose: Purpose) -> float:
    """Return the number in (0, 1) that decides something behind a prefix."""
    return float(uniforms(random_bits([0], draws(digest, purpose)))[0])


def noisy(row: Floats, digest: bytes, purpose: Purpose, ids: Tokens | None = None) -> Floats:
    """Return log of a row of weights [n] plus Gumbel noise, -inf where there is no weight: its argmax is a sample.

    `ids` are the tokens of the columns where these are not all.
    """
    columns = np.flatnonzero(row > 0.0)
    values = np.full(len(row), -np.inf)
    values[columns] = np.log(row[columns]) + gumbel_at(columns, len(row), draws(digest, purpose), ids)
    return values


def draw(row: Floats, digest: bytes, ids: Tokens | None = None) -> tuple[int, float]:
    """Return the column drawn from weights [n], and its softmax among the noisy ones as in `sampling.choose`."""
    return likeliest(noisy(row, digest, Purpose.REST, ids))


def draw_rest(target: Distribution, draft: Distribution, digest: bytes, keep: int = 0) -> int:
    """Return the token after a rejected one, drawn from norm(max(0, p - q)).

    keep: first whether it is in the head of p is drawn, then which of the head or of the tail it is; 0: all at once.
    """
    residual = np.maximum(target.row - draft.row, 0.0)
    if not residual.any():
        # p and q are equal but for rounding: then nothing but a rounding error has rejected the token.
        residual = target.row
    inside = np.zeros(len(residual), dtype=bool)
    inside[head(target, keep) if keep else slice(None)] = True
    in_head, whole = residual[inside].sum(), residual.sum()
    if 0.0 < in_head < whole:
        is_head = uniform(digest, Purpose.PART) * whole < in_head
        residual = np.where(inside == is_head, residual, 0.0)
    return draw(residual, digest)[0]


@dataclass(frozen=True)
class Drawn:
    """How a draft token was sampled: with which probability and, where that came up whole, from what, over how many
    tokens."""

    chance: float
    masses: Masses | None = None
    vocabulary: int = 0

    @property
    def source(self) -> Distribution | None:
        """What it was sampled from. Unpacked each time: a vocabulary's row is large, and seldom needed."""
        return None if self.masses is None else unpack(self.masses, self.vocabulary)


@dataclass(eq=False)
class TargetRest:
    """The target's distribution behind a rejected token, of which the edge subtracts its own; see `acceptance.Rest`.

    keep: how many of the likeliest tokens are sent at first, 0 for all.
    """

    target: Distribution
    keep: int = 0

    @cached_property
    def part(self) -> Masses:
        return pack(self.target, self.keep)

    @cached_property
    def whole(self) -> Masses:
        return pack(self.target)

    def allows(self, token: int) -> bool:
        """Whether the target gives a token any probability; else the edge did not sample it."""
        return bool(self.target.weights[token] > 0.0)


class RejectionScheme(SamplingScheme, frozen=True):
    """What the three forms share: the acceptance of a chain, and the distributions that the edge sampled from."""

    one_chain: ClassVar[bool] = True
    field: ClassVar[str]
    """The field of `Draft` with an entry for each token, on how it was sampled: chosen or whole."""

    @property
    def alone(self) -> SamplingScheme:
        """Coupled sampling: without a verifier any sample of the distribution will do."""
        return Coupled(self.temperature, self.top_k, self.top_p)

    def sampler(self, key: int) -> DraftSampler:
        """Return the draft half. The key is part of every digest, and these name the random numbers."""
        return RejectionSampler(self)

    def rule(self, digest: bytes, evidence: Evidence, early: bool = False) -> AcceptanceRule:
        return Rejection(self, digest, evidence, early)

    def read(self, draft: Draft, vocabulary: int, idle: Idle = Idle.WAIT) -> Evidence:
        if idle is not Idle.WAIT:
            raise ValueError(f"sampling {self.name} excludes idle decoding where drafts come; begin the step with WAIT")
        if draft.parents is not None:
            raise ValueError(f"Draft.parents: sampling {self.name} judges chains, not trees")
        given, other = getattr(draft, self.field), "whole" if self.field == "chosen" else "chosen"
        if len(given) != len(draft.tokens) or getattr(draft, other):
            raise ValueError(
                f"Draft.{self.field} has {len(given)} entries for {len(draft.tokens)} tokens; {self.name} needs each, "
                f"and no Draft.{other}"
            )
        drawn = self.drawn(draft, vocabulary)
        if any(each.chance <= 0.0 for each in drawn):
            raise ValueError(f"Draft.{self.field} gives a token no probability: it cannot have been drawn")
        return drawn

    def prove(self, draft: Draft, sources: Sequence[Distribution]) -> Draft:
        """Return a draft with what its tokens were sampled from, as far as this form sends it. Raises ValueError for
        what no message can take."""
        raise NotImplementedError

    def drawn(self, draft: Draft, vocabulary: int) -> tuple[Drawn, ...]:
        """Return how each token of a draft was sampled. Raises ValueError for what cannot be."""
        raise NotImplementedError

    def rest(self, target: Distribution) -> Rest:
        """Return what is left to the edge where its own distribution did not come up."""
        raise NotImplementedError

    def finish(self, rest: Masses, source: Distribution, digest: bytes) -> int | None:
        """Return the token after the rejected one, which was sampled from `source`; see `DraftSampler.finish`."""
        raise ValueError(f"Commit.rest came, but sampling {self.name} leaves no token to the edge")


class RejectionSampler(DraftSampler):
    """Samples draft tokens by noise of their prefix, and keeps what they were sampled from while it may be needed."""

    def __init__(self, scheme: RejectionScheme) -> None:
        self._scheme = scheme
        self._after: dict[bytes, Distribution] = {}
        self._finished: tuple[bytes, int] | None = None
        """The last token that the edge sampled out of a commit, and the digest of the answer with it."""

    def rank(self, logits: Logits, prefix: Prefix) -> Logits:
        """Return log probabilities plus noise, so that the largest is a sample."""
        source = self._after[prefix.digest] = Distribution.of(logits, self._scheme)
        return noisy(source.row, prefix.digest, Purpose.DRAFT)

    def forget_all_but(self, prefixes: Sequence[Prefix]) -> None:
        known = {prefix.digest for prefix in prefixes}
        self._after = {digest: after for digest, after in self._after.items() if digest in known}

    def attach(self, draft: Draft) -> Draft:
        """Return a draft with its evidence; right behind a token that the edge sampled, with that token, too.

        Raises ValueError for a token that was not sampled here: a verifier that commits the beginning of a draft, which
        no rejection does, leaves what its exits named behind the rest.
        """
        digest, sources = draft.digest, []
        for place, token in enumerate(draft.tokens):
            source = self._after.get(digest)
            if source is None:
                raise ValueError(f"token {place} of the draft was named by an exit, not sampled; it cannot be judged")
            sources.append(source)
            digest = extend_digest(digest, [token])
        draft = self._scheme.prove(draft, sources)
        if self._finished is None or self._finished[0] != draft.digest:
            return draft
        return msgspec.structs.replace(draft, drawn=self._finished[1])

    def finish(self, digest: bytes, rest: Masses) -> int | None:
        source = self._after.get(digest)
        if source is None:
            raise ValueError("Commit.rest is about a place where nothing was drafted")
        token = self._scheme.finish(rest, source, digest)
        if token is not None:
            self._finished = (extend_digest(digest, [token]), token)
        return token


@dataclass(frozen=True)
class Rejection:
    """Accept a chain of sampled tokens, each with probability min(1, p(x) / q(x)); see `AcceptanceRule`.

    digest: of the prefix up to the root. drawn: how every token was sampled. guesses: after a rejection that only the
    edge can finish, what it may sample is guessed: exits want that, the last layer does not.
    """

    scheme: RejectionScheme
    digest: bytes
    drawn: tuple[Drawn, ...] = ()
    guesses: bool = False

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        draws: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Judge a chain; see `AcceptanceRule.judge`. The random numbers are those of `digest`, not of `draws`."""
        if list(parents) != list(range(ROOT, len(tokens) - 1)) or len(self.drawn) != len(tokens):
            raise ValueError(f"sampling {self.scheme.name} judges chains of drawn tokens, not {list(parents)}")
        if logits.ndim != 2 or len(logits) != len(tokens) + 1:
            raise ValueError(f"{len(tokens)} tokens and logits {list(logits.shape)} are no draft")
        digest, confidence = self.digest, 1.0
        for node, (token, drawn) in enumerate(zip(tokens, self.drawn, strict=True)):
            target = Distribution.of(logits[node], self.scheme)
            column = token if ids is None else _column(ids, token)
            chance = 0.0 if column is None else float(target.row[column])
            stands = min(1.0, chance / drawn.chance)
            if uniform(digest, Purpose.ACCEPT) >= stands:
                token, rest, sure = self._after(drawn, column, target, digest, ids)
                return Verdict(tuple(range(node)), token, confidence * (1.0 - stands) * sure, rest)
            confidence *= stands
            digest = extend_digest(digest, [token])
        column, sure = draw(Distribution.of(logits[-1], self.scheme).row, digest, ids)
        return Verdict(tuple(range(len(tokens))), column if ids is None else int(ids[column]), confidence * sure)

    def _after(
        self, drawn: Drawn, column: int | None, target: Distribution, digest: bytes, ids: Tokens | None
    ) -> tuple[int, Rest | None, float]:
        """Return the token after a rejected one, what is left to the edge to sample it from, and how likely it is.

        Where it is the edge's, the token is a guess: as if the draft could have proposed nothing but the rejected one;
        0 where none is asked for.
        """
        source = drawn.source
        rest = self.scheme.rest(target) if source is None else None
        if rest is not None and not self.guesses:
            return 0, rest, 1.0
        if source is not None:
            residual = np.maximum(target.row - (source.row if ids is None else source.row[ids]), 0.0)
        else:
            residual = target.row.copy()
            if column is not None:
                residual[column] = 0.0
        place, sure = draw(residual if residual.any() else target.row, digest, ids)
        return place if ids is None else int(ids[place]), rest, sure


def _column(ids: Tokens, token: int) -> int | None:
    place = int(np.searchsorted(ids, token))
    return place if place < len(ids) and ids[place] == token else None
