"""Which draft tokens stand, and what follows them: the rule that makes the target the only author (numpy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speculation.sampling import FIRST_DRAWS, GREEDY, Distribution, Logits, SamplingSettings, StepDraws, Tokens, choose
from speculation.wire import ROOT


@dataclass(frozen=True)
class Verdict:
    """What the target says about a draft: the accepted nodes `path`, root first, and the `token` after them.

    `confidence` is the probability of the whole verdict: the softmax score of one token (Fast and Cost-effective
    Speculative Edge-Cloud Decoding with Early Exits, Eq. 4), multiplied over the tokens on the path and `token`.
    `rest`: where only the edge can draw what follows (see `speculation.rejection`), the target's distribution there;
    `token` is then a guess, or 0.
    """

    path: tuple[int, ...]
    token: int
    confidence: float
    rest: Distribution | None = None


class AcceptanceRule(Protocol):
    """A way to judge drafts. `name` is what `Hello.sampling` says."""

    @property
    def name(self) -> str:
        """The name on the wire."""
        ...

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        sampling: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Judge a draft tree of n nodes by the target's (or an exit's) logits [n + 1, vocabulary].

        Node i carries `tokens[i]` behind node `parents[i]` < i or ROOT; row 0 of the logits follows the root, row i + 1
        node i. `sampling` names the draws of row 0: the answer's key and the answer position of the token after the
        root. `ids` are the tokens of the columns (ascending), where these are no whole vocabulary. Raises ValueError
        for a malformed tree or logits that are not finite.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """Accept a node while it is its parent's likeliest next token (Leviathan et al., arXiv 2211.17192, temperature 0).

    Ties go to the lowest token id, and of siblings with one token the first counts. The rule knows no end of an answer:
    whoever commits cuts behind the first end token.
    """

    @property
    def name(self) -> str:
        """The name on the wire."""
        return GREEDY.text

    def judge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        logits: Logits,
        sampling: StepDraws = FIRST_DRAWS,
        ids: Tokens | None = None,
    ) -> Verdict:
        """Walk from the root to the likeliest child until there is none; see `AcceptanceRule.judge`."""
        return _walk_rows(tokens, parents, logits, lambda row, _: _likeliest(row), ids)


@dataclass(frozen=True)
class Coupled:
    """Accept a node while it is what the target itself draws there (Daliri, Musco, Suresh, arXiv 2408.07978).

    With `Rule.POINT` the target draws just so, and only the draft does otherwise.

    The draw at an answer position is the argmax of logits + noise, and the noise is a hash of key, position and token
    (`speculation.sampling`): it does not depend on the draft. So in a tree all siblings at a depth are held against one
    draw, and the answer is the target's own with that key, whatever was drafted. Temperature 0 is `Greedy`.

    The confidence of a verdict is the softmax of the perturbed logits (see `sampling.choose`), multiplied as for greedy
    verdicts. For an exit it is only a score that `ExitHeads.reliability` turns into a rate; the tables of exits are
    measured on greedy verdicts.
    """

    settings: SamplingSettings

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
        """Walk from the root to the child that is drawn until there is none; see `AcceptanceRule.judge`."""

        def draw(row: Logits, depth: int) -> tuple[int, float]:
            return choose(row, self.settings, sampling.ahead(depth), ids)

        return _walk_rows(tokens, parents, logits, draw, ids)


def rule_of(settings: SamplingSettings) -> AcceptanceRule:
    """Return the rule that draws as `settings` say and needs nothing but tokens of a draft."""
    return Greedy() if settings.greedy else Coupled(settings)


def judge_picks(tokens: Sequence[int], parents: Sequence[int], picks: Sequence[tuple[int, float]]) -> Verdict:
    """Judge a draft tree where what every rule would draw is known: the token after the root and after each node.

    `picks` are n + 1 tokens with their probabilities, in the order of the rows of `AcceptanceRule.judge`; nan stands
    for logits that are not finite. Raises ValueError as that does.
    """
    if len(picks) != len(tokens) + 1:
        raise ValueError(f"{len(picks)} picks for {len(tokens)} tokens; give one more than tokens")
    return _walk(tokens, parents, lambda node, _: picks[node + 1])


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return how far behind the root each row of a tree's logits stands: 0 for the root's, then one a node."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return depths


def _walk_rows(
    tokens: Sequence[int],
    parents: Sequence[int],
    logits: Logits,
    draw: Callable[[Logits, int], tuple[int, float]],
    ids: Tokens | None,
) -> Verdict:
    """Walk by logits; `draw` returns the column, and its probability, of a row at a depth."""
    if logits.ndim != 2 or len(logits) != len(tokens) + 1:
        raise ValueError(f"{len(tokens)} tokens and logits {list(logits.shape)} are no draft tree")

    def pick(node: int, depth: int) -> tuple[int, float]:
        row = logits[node + 1]
        if not np.isfinite(row.max()):
            return 0, np.nan
        column, probability = draw(row, depth)
        return column if ids is None else int(ids[column]), probability

    return _walk(tokens, parents, pick)


def _walk(tokens: Sequence[int], parents: Sequence[int], pick: Callable[[int, int], tuple[int, float]]) -> Verdict:
    """Follow the tree as long as it says what is picked: the token, and its probability, after a node at a depth."""
    children = _children(tokens, parents)
    path: list[int] = []
    node, confidence = ROOT, 1.0
    while True:
        token, probability = pick(node, len(path))
        if np.isnan(probability):
            raise ValueError(f"logits after node {node} are not finite; the model's weights or inputs are broken")
        confidence *= probability
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(path), token, confidence)
        path.append(child)
        node = child


def _likeliest(row: Logits) -> tuple[int, float]:
    column = int(np.argmax(row))
    return column, 1.0 / float(np.exp(row.astype(np.float64) - float(row[column])).sum())


def _children(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    if len(tokens) != len(parents):
        raise ValueError(f"{len(tokens)} tokens and {len(parents)} parents are no draft tree")
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not ROOT <= parent < node:
            raise ValueError(f"parent {parent} of node {node} must be in {ROOT}..{node - 1}")
        children.setdefault((parent, token), node)
    return children


def expected_tokens(chance: float, depth: int) -> float:
    """Return E(k) = 1 + a + ... + a^k, the tokens that verifying a draft `depth` levels deep commits.

    The target's own token is one of them; `chance` is that of each draft token whose ancestors stand (Leviathan et al.,
    arXiv 2211.17192, Eq. 1).
    """
    return sum(chance**level for level in range(depth + 1))
