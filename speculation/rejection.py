"""Rejection sampling with one author: a chain of drawn tokens, the target's verdict, and what follows a rejection.

The rule (Leviathan et al., arXiv 2211.17192, Algorithm 1): a token x that the draft drew from q stands with probability
min(1, p(x) / q(x)); where it does not, the next token is drawn from norm(max(0, p - q)); where all stand, from p. So
every token is a sample of the target's p. Three wire forms share the rule (`sampling.Rule`): WHOLE sends q up and the
verifier draws (DSD); SPLIT sends q(x) up, and after a rejection p comes down and the edge draws (DSSD, Sec. 3);
SPARSE sends down the head of p and the mass of its tail (PicoSpec, Sec. 3.3, made exact): where that mass leaves open
what is drawn, the edge fetches the tail. The authors of DSSD name a filed patent, CN2025108856278.

Random numbers are hashes of the digest that names the prefix, and of what they are for. So a repeated message draws
the same, and nothing that an exit said about one prefix tells anything about the numbers of another. What makes it
exact: a place is drafted once. A token is drawn before it is known whether it is sent, and all that is drawn up to the
end of a draft is sent, so a draft may end anywhere that earlier tokens of it decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from speculation.acceptance import Verdict
from speculation.sampling import (
    FIRST_DRAWS,
    MAX_KEY,
    Distribution,
    Logits,
    Row,
    Rule,
    SamplingSettings,
    StepDraws,
    Tokens,
    all_random_bits,
    gumbel,
    random_bits,
    uniforms,
)
from speculation.wire import ROOT, BeginStep, Draft, Idle, Masses, extend_digest

ROUNDING = 1e-9
"""By so much sums over a vocabulary may differ between one order of adding and another."""


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


def noisy(row: Row, digest: bytes, purpose: Purpose, ids: Tokens | None = None) -> Row:
    """Return log of a row of weights [n] plus Gumbel noise, -inf where there is no weight: its argmax is a sample.

    `ids` are the tokens of the columns where these are not all.
    """
    columns = np.flatnonzero(row > 0.0)
    values = np.full(len(row), -np.inf)
    if ids is None and len(columns) == len(row):
        bits = all_random_bits(len(row), draws(digest, purpose))
    else:
        bits = random_bits(columns if ids is None else ids[columns], draws(digest, purpose))
    values[columns] = np.log(row[columns]) + gumbel(bits)
    return values


def draw(row: Row, digest: bytes, ids: Tokens | None = None) -> tuple[int, float]:
    """Return the column drawn from weights [n], and its softmax among the noisy ones as in `sampling.choose`."""
    values = noisy(row, digest, Purpose.REST, ids)
    best = int(np.argmax(values))
    return best, 1.0 / float(np.exp(values - values[best]).sum())


def head(target: Distribution, keep: int) -> Tokens:
    """Return the `keep` likeliest tokens that may be drawn, ascending; of equals the lower ones."""
    weights = target.weights
    if keep >= len(weights):
        return np.flatnonzero(weights)
    least = np.partition(weights, -keep)[-keep]
    above = np.flatnonzero(weights > least)
    level = np.flatnonzero(weights == least)[: keep - len(above)]
    return np.sort(np.concatenate([above, level] if least > 0.0 else [above]))


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


def draw_from_head(masses: Masses, draft: Distribution, digest: bytes) -> int | None:
    """Return what `draw_rest` returns with the whole distribution, or None where the head of it leaves that open.

    The tail's share of the residual is at most its mass. So the draw is in the head, and known, where the number that
    decides is below the share that the head has then. Raises ValueError for tokens that the draft does not have.
    """
    ids, values = listed(masses, len(draft.weights))
    rest = np.maximum(values / masses.total - draft.row[ids], 0.0)
    inside = float(rest.sum())
    # A rounding error of the sums must not decide: then the tail is fetched.
    if uniform(digest, Purpose.PART) * (inside + masses.tail + ROUNDING) >= inside * (1.0 - ROUNDING):
        return None
    return int(ids[draw(rest, digest, ids)[0]])


def pack(target: Distribution, keep: int = 0) -> Masses:
    """Return a distribution, or the `keep` likeliest tokens of it, for the wire.

    Tokens that may not be drawn are left out where that is shorter.
    """
    weights = target.weights
    ids = head(target, keep) if keep else np.flatnonzero(weights)
    whole = np.count_nonzero(weights) == len(ids)
    if whole and 2 * len(ids) >= len(weights):
        return Masses(weights.astype("<f4").tobytes(), target.total)
    tail = 0.0 if whole else max(0.0, 1.0 - float(weights[ids].sum(dtype=np.float64)) / target.total)
    # So small a tail rounds to nothing, but it is there.
    tail = tail if whole else max(tail, float(np.finfo(np.float64).tiny))
    return Masses(weights[ids].astype("<f4").tobytes(), target.total, ids.astype("<u4").tobytes(), tail)


def listed(masses: Masses, vocabulary: int) -> tuple[Tokens, Row]:
    """Return the tokens that masses name and their weights. Raises ValueError for tokens or weights that cannot be."""
    values = np.frombuffer(masses.weights, dtype="<f4").astype(np.float64)
    ids = np.frombuffer(masses.ids, dtype="<u4").astype(np.int64) if masses.ids else np.arange(len(values))
    if not len(ids) or (len(ids) != vocabulary and not masses.ids) or ids.max() >= vocabulary:
        raise ValueError(f"Masses.ids: {len(ids)} tokens are no part of a vocabulary of {vocabulary}")
    if not (np.isfinite(values).all() and (values >= 0.0).all() and values.any()):
        raise ValueError("Masses.weights must be finite and not negative, and not all 0")
    return ids, values


def unpack(masses: Masses, vocabulary: int) -> Distribution:
    """Return a distribution that came over the wire whole. Raises ValueError as `listed`, and for a part of one."""
    if masses.tail:
        raise ValueError(f"Masses.tail is {masses.tail:g}: this is a part of a distribution")
    ids, values = listed(masses, vocabulary)
    weights = np.zeros(vocabulary, dtype=np.float32)
    weights[ids] = values
    return Distribution(weights, masses.total)


@dataclass(frozen=True)
class Drawn:
    """How a draft token was drawn: with which probability and, with `Rule.WHOLE`, from what, over how many tokens."""

    chance: float
    masses: Masses | None = None
    vocabulary: int = 0

    @property
    def source(self) -> Distribution | None:
        """What it was drawn from. Unpacked each time: a vocabulary's row is large, and seldom needed."""
        return None if self.masses is None else unpack(self.masses, self.vocabulary)


def check_begin(begin: BeginStep, sampling: SamplingSettings) -> None:
    """Raise ValueError where a step asks for what its rule does not go with: only drafts of its edge may be judged."""
    if sampling.rule.rejects and (begin.idle is Idle.LEDGER or begin.self_draft or begin.hints):
        raise ValueError(
            f"sampling {sampling.rule.value} excludes idle decoding, hints and drafts of the verifier's own; begin the "
            "step with idle WAIT, or DECODE without drafts"
        )


def read_draft(draft: Draft, sampling: SamplingSettings, vocabulary: int, idle: Idle = Idle.WAIT) -> tuple[Drawn, ...]:
    """Return how each token of a draft was drawn, nothing where its rule does not ask for it.

    `idle` is its step's. Raises ValueError, naming the field, where a draft does not carry what its rule judges it by.
    """
    rule = sampling.rule
    if not rule.rejects:
        if draft.chosen or draft.whole or draft.drawn is not None:
            raise ValueError(f"Draft.chosen, whole and drawn are for rejection sampling, not for {sampling.text}")
        return ()
    if idle is not Idle.WAIT:
        raise ValueError(f"sampling {rule.value} excludes idle decoding where drafts come; begin the step with WAIT")
    if draft.parents is not None:
        raise ValueError(f"Draft.parents: sampling {rule.value} judges chains, not trees")
    name, other = ("whole", "chosen") if rule is Rule.WHOLE else ("chosen", "whole")
    given = getattr(draft, name)
    if len(given) != len(draft.tokens) or getattr(draft, other):
        raise ValueError(
            f"Draft.{name} has {len(given)} entries for {len(draft.tokens)} tokens; {rule.value} needs each, and no "
            f"Draft.{other}"
        )
    drawn = tuple(Drawn(chance) for chance in draft.chosen)
    if rule is Rule.WHOLE:
        pairs = zip(draft.tokens, draft.whole, strict=True)
        drawn = tuple(Drawn(_chance(masses, token, vocabulary), masses, vocabulary) for token, masses in pairs)
    if any(each.chance <= 0.0 for each in drawn):
        raise ValueError(f"Draft.{name} gives a token no probability: it cannot have been drawn")
    return drawn


def _chance(masses: Masses, token: int, vocabulary: int) -> float:
    """Return a token's probability in a distribution that must be whole."""
    if masses.tail:
        raise ValueError(f"Masses.tail is {masses.tail:g}: this is a part of a distribution")
    ids, values = listed(masses, vocabulary)
    return float(values[ids == token].sum()) / masses.total


@dataclass(frozen=True)
class Rejection:
    """Accept a chain of drawn tokens, each with probability min(1, p(x) / q(x)); see `AcceptanceRule`.

    digest: of the prefix up to the root. drawn: how every token was. guesses: after a rejection that only the edge can
    finish, what it may draw is guessed: exits want that, the last layer does not.
    """

    settings: SamplingSettings
    digest: bytes
    drawn: tuple[Drawn, ...] = ()
    guesses: bool = False

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.settings.text

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        sampling: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Judge a chain; see `AcceptanceRule.judge`. The draws are those of `digest`, not of `sampling`."""
        if list(parents) != list(range(ROOT, len(tokens) - 1)) or len(self.drawn) != len(tokens):
            raise ValueError(f"sampling {self.settings.rule.value} judges chains of drawn tokens, not {list(parents)}")
        if logits.ndim != 2 or len(logits) != len(tokens) + 1:
            raise ValueError(f"{len(tokens)} tokens and logits {list(logits.shape)} are no draft")
        digest, confidence = self.digest, 1.0
        for node, (token, drawn) in enumerate(zip(tokens, self.drawn, strict=True)):
            target = Distribution.of(logits[node], self.settings)
            column = token if ids is None else _column(ids, token)
            chance = 0.0 if column is None else float(target.row[column])
            stands = min(1.0, chance / drawn.chance)
            if uniform(digest, Purpose.ACCEPT) >= stands:
                token, rest, sure = self._after(drawn, column, target, digest, ids)
                return Verdict(tuple(range(node)), token, confidence * (1.0 - stands) * sure, rest)
            confidence *= stands
            digest = extend_digest(digest, [token])
        column, sure = draw(Distribution.of(logits[-1], self.settings).row, digest, ids)
        return Verdict(tuple(range(len(tokens))), column if ids is None else int(ids[column]), confidence * sure)

    def _after(
        self, drawn: Drawn, column: int | None, target: Distribution, digest: bytes, ids: Tokens | None
    ) -> tuple[int, Distribution | None, float]:
        """Return the token after a rejected one, what is left to the edge to draw it from, and how likely it is.

        Where it is the edge's, the token is a guess: as if the draft could have proposed nothing but the rejected one;
        0 where none is asked for.
        """
        source = drawn.source
        left = target if source is None else None
        if left is not None and not self.guesses:
            return 0, left, 1.0
        if source is not None:
            residual = np.maximum(target.row - (source.row if ids is None else source.row[ids]), 0.0)
        else:
            residual = target.row.copy()
            if column is not None:
                residual[column] = 0.0
        place, sure = draw(residual if residual.any() else target.row, digest, ids)
        return place if ids is None else int(ids[place]), left, sure


def _column(ids: Tokens, token: int) -> int | None:
    place = int(np.searchsorted(ids, token))
    return place if place < len(ids) and ids[place] == token else None
