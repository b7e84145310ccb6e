"""Chooses which draft tokens of many sessions are worth their seconds in a pass, by what each session had accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from cloud_verifier.choice import Act, Choice
from cloud_verifier.policies.batch_builder import BatchBuilder, Candidate, cut
from speculation.pass_cost import Load

DECODE = Choice(Act.DECODE)
HOPELESS = 0.1
"""Share of what a pass commits per second below which a draft token only holds up the other robots."""


def leave_out_hopeless(rows: Sequence[Candidate], batch: BatchBuilder) -> Sequence[Candidate]:
    """Return the rows without draft tokens that are `HOPELESS`, so that a robot whose drafts are long and wrong costs
    the others little more than one that decodes. Where there are no others, all that was drafted."""
    return spend(rows, batch, HOPELESS) if batch.sessions > 1 else rows


def spend(rows: Sequence[Candidate], batch: BatchBuilder, share: float = 1.0) -> list[Candidate]:
    """Return the rows with as much of their drafts as makes a pass over the first of them, as many as a batch can have,
    commit most tokens per second.

    Where a token's price does not depend on what else is in the pass (WISP, Eq. 19), no other choice of tokens is
    better: for a ratio of sums those are right that bring more than the ratio (Dinkelbach, 1967). share: of that ratio
    is enough for a token to stay.
    """
    estimates = batch.estimates
    if not estimates.known:
        return list(rows)
    together = rows[: batch.budget.rows]
    roots = Load.total(row.step.load(DECODE) for row in together)
    tokens, seconds = float(roots.rows), estimates.seconds(roots)
    parts = [_parts(row, roots, seconds) for row in rows]
    for part in sorted(chain.from_iterable(parts[: len(together)]), reverse=True):
        if part.rate * seconds < tokens:
            break
        tokens, seconds = tokens + part.tokens, seconds + part.seconds
    rate = tokens / seconds if seconds > 0.0 else 0.0
    return [_cut(row, mine, share * rate) for row, mine in zip(rows, parts, strict=True)]


class Part(NamedTuple):
    """A part is tokens of a draft that are taken together."""

    rate: float
    """Tokens per second."""
    end: int
    """How many tokens of the draft there are with these."""
    tokens: float
    """How many of these are expected to be accepted."""
    seconds: float
    """What they add to a pass."""


def _parts(row: Candidate, roots: Load, roots_s: float) -> list[Part]:
    """Return a draft in parts whose rates fall: a token that is worth more than those before it comes with them.

    Its tokens are taken to cost the same; a later one only reads the earlier ones, besides.
    """
    acceptance, tree = row.step.ledger.stats.acceptance_of(row.choice.act), row.choice.tree
    if acceptance is None or not tree.tokens:
        return []
    price = row.estimates.seconds(roots + row.load - row.step.load(DECODE)) - roots_s
    price = max(0.0, price) / len(tree.tokens)
    parts: list[Part] = []
    for end, tokens in enumerate(acceptance.reach(tree.parents), start=1):
        seconds = price
        rate = tokens / seconds if seconds > 0.0 else math.inf
        while parts and parts[-1].rate <= rate:
            before = parts.pop()
            tokens, seconds = before.tokens + tokens, before.seconds + seconds
            rate = tokens / seconds if seconds > 0.0 else math.inf
        parts.append(Part(rate, end, tokens, seconds))
    return parts


def _cut(row: Candidate, parts: Sequence[Part], rate: float) -> Candidate:
    """Return a row with the parts of its draft that bring at least so many tokens per second.

    A draft that is yet to be made here has no parts, and stays.
    """
    if row.choice.act is Act.SELF:
        return row
    taken = [part for part in parts if part.rate >= rate]
    choice = cut(row.step, row.choice, taken[-1].end if taken else 0)
    if choice is row.choice:
        taken = list(parts)
    return replace(row, choice=choice, accepted=sum(part.tokens for part in taken))
