"""One budget of draft tokens for all sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cloud_verifier.ledger import Estimates
from cloud_verifier.policies.admission import Admission, Row, cut
from cloud_verifier.policies.wisp import Wisp, by_urgency
from speculation.pass_cost import Load


class Part(NamedTuple):
    """Tokens of a draft that belong together: the best that follow those before them."""

    end: int
    """How many tokens of the draft there are with these."""
    gain: float
    """Expected accepted tokens among these."""
    seconds: float
    """What they add to a pass."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.gain / self.seconds if self.seconds > 0.0 else float("inf")


class FullBudget(Wisp):
    """Draft tokens of all sessions compete: the next one in is that with most accepted tokens per second of the pass.

    The root of a row, which decodes, is a token for certain and work that is to be done in any case; a draft token is
    worth its survival (`Survival`). Tokens are taken in as long as the tokens per second of the whole grow. What is
    left out stays held, so that a later verdict may still need it. Rows so cut are then scheduled as by `Wisp`.

    No session is given more than it would do itself, so that its ledger's promise holds.
    """

    def fill(self, batch: Admission, rows: Sequence[Row]) -> None:
        """See `RowPolicy.fill`."""
        order = [row for group in by_urgency(batch, rows) for row in group]
        super().fill(batch, spend(order, batch))


def spend(rows: Sequence[Row], batch: Admission) -> list[Row]:
    """Return the rows with as much of their drafts as makes a pass over the first of them, as many as a batch can have,
    commit most tokens per second.

    Where a token's price does not depend on what else is in the pass (WISP's Eq. 19), no other choice of tokens is
    better: for a ratio of sums those are right that bring more than the ratio (Dinkelbach, 1967).
    """
    estimates, budget = batch.estimates, batch.budget
    if not estimates.known:
        return list(rows)
    roots = Load.total(Load.row(1, row.step.cached) for row in rows[: budget.rows])
    parts = {row.step: _parts(row, roots, estimates) for row in rows}
    gain, seconds = float(roots.rows), estimates.seconds(roots)
    offered = (part for row in rows[: budget.rows] for part in parts[row.step])
    for part in sorted(offered, key=lambda part: -part.rate):
        if part.gain * seconds < gain * part.seconds:
            break
        gain, seconds = gain + part.gain, seconds + part.seconds
    spent = []
    for row in rows:
        taken = [part for part in parts[row.step] if part.gain * seconds >= gain * part.seconds]
        choice = cut(row.step, row.choice, taken[-1].end if taken else 0)
        spent.append(Row.of(row.step, choice, batch.now, estimates, sum(part.gain for part in taken)))
    return spent


def _parts(row: Row, roots: Load, estimates: Estimates) -> list[Part]:
    """Return a draft in parts whose rates fall: a token that is worth more than those before it comes with them."""
    survival = row.step.ledger.survival.get(row.choice.act)
    if survival is None:
        return []
    parts: list[Part] = []
    before, cached = estimates.seconds(roots), row.step.cached
    for size, gain in enumerate(survival.of(row.choice.tree.parents), start=1):
        after = estimates.seconds(roots + Load(0, size, Load.row(1 + size, cached).interactions - 1 - cached))
        part = Part(size, gain, max(0.0, after - before))
        before = after
        while parts and parts[-1].rate <= part.rate:
            part = Part(size, parts[-1].gain + part.gain, parts[-1].seconds + part.seconds)
            parts.pop()
        parts.append(part)
    return parts
