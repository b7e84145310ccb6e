"""What robots ask: requests whose answers, and how well a draft model foresees them, are sampled.

Every answer position has candidates, the tokens that the draft model ranks highest there; the target's token is the one
of rank `ranks[position]`, or none of them. A request is the same under every system, so that systems are compared pair
by pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CANDIDATES = 16
"""Tokens that a position's candidates take up; the last one is the target's where the draft model ranks it nowhere."""
WORDS = 1024
VOCABULARY = CANDIDATES * WORDS + 1
EOS = VOCABULARY - 1
"""Never sampled: answers end by their length."""
FIXED_K = 5
"""Draft tokens of a system with a fixed length. WISP does not print its own; with 5, Table 5's acceptance shares with
and without predictor agree with Table 4's predictor."""


@dataclass(frozen=True)
class Predictor:
    """An edge's rejection predictor (WISP, Sec. 4.1). The defaults are its MLP, Table 4."""

    passes_right: float = 0.8011
    """Chance that it lets a token pass that will be accepted."""
    passes_wrong: float = 0.425
    """Chance that it lets one pass that will be rejected."""


@dataclass(frozen=True)
class Workload:
    """Says how requests and their answers are sampled."""

    kinds: tuple[tuple[float, ...], ...] = ((0.7322,),)
    """Chance that the draft model's first, second, ... candidate is the target's token, for each kind of answer
    position; the draft model sees in advance of which kind a position is. Of the tokens that WISP judged, 73.22 % were
    accepted (Table 8)."""
    shares: tuple[float, ...] = (1.0,)
    """How much of the answers is of each kind."""
    prompt: tuple[int, int] = (128, 384)
    """Fewest and most tokens of a prompt, uniformly."""
    answer: tuple[int, int] = (128, 384)
    predictor: Predictor = Predictor()
    seed: int = 0
    stay: float = 0.0
    """Chance that a position has the kind of the one before it, whatever the shares: easy text comes in stretches."""

    def request(self, robot: int, number: int) -> Request:
        """Return a robot's request of this number; always the same one."""
        random = np.random.default_rng([self.seed, robot, number])
        prompt = int(random.integers(self.prompt[0], self.prompt[1] + 1))
        length = int(random.integers(self.answer[0], self.answer[1] + 1))
        firsts = random.integers(0, WORDS, length) * CANDIDATES
        none = CANDIDATES - 1
        kinds = np.searchsorted(np.cumsum(self.shares)[:-1], random.random(length), side="right")
        if self.stay:
            changes = np.random.default_rng([self.seed, robot, number, 1]).random(length) >= self.stay
            kinds = kinds[np.maximum.accumulate(np.where(changes, np.arange(length), 0))]
        sampled, ranks = random.random(length), np.full(length, none)
        for kind, chances in enumerate(self.kinds):
            places = np.searchsorted(np.cumsum(chances), sampled, side="right")
            ranks = np.where((kinds == kind) & (places < len(chances)), places, ranks)
        right = ranks == 0
        chance = random.random((2, length))
        base = sum(share * chances[0] for share, chances in zip(self.shares, self.kinds, strict=True))
        rates = np.where(right, self.predictor.passes_right, self.predictor.passes_wrong)
        mean = base * self.predictor.passes_right + (1.0 - base) * self.predictor.passes_wrong
        return Request(
            prompt, tuple((firsts + ranks).tolist()), tuple(firsts.tolist()), tuple(ranks.tolist()),
            tuple(kinds.tolist()), tuple((chance[0] >= rates).tolist()), tuple((chance[1] >= mean).tolist()),
        )  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One question. All sequences run over answer positions."""

    prompt: int
    """Tokens of the prompt."""
    answer: tuple[int, ...]
    """The target's tokens."""
    firsts: tuple[int, ...]
    """The draft model's likeliest token behind a right prefix; its candidate of rank r is that number plus r."""
    ranks: tuple[int, ...]
    """Rank of the target's token among the candidates; `CANDIDATES` - 1: it is none of them."""
    kinds: tuple[int, ...]
    """Index of each position's kind in `Workload.kinds`."""
    stops: tuple[bool, ...]
    """Whether the predictor expects the likeliest token behind a right prefix to be rejected."""
    strays: tuple[bool, ...]
    """Whether it expects that behind a prefix that went wrong, where it knows no more than on average."""

    def beginning(self, share: float) -> Request:
        """Return what is left of the request where only this share of its answer, one token at least, is to come.

        The rest is behind it: it counts as prompt, so that the context is as long as it is in the midst of an answer.
        """
        behind = len(self.answer) - max(1, round(share * len(self.answer)))
        return Request(
            self.prompt + behind, self.answer[behind:], self.firsts[behind:], self.ranks[behind:],
            self.kinds[behind:], self.stops[behind:], self.strays[behind:],
        )  # fmt: skip

    def right(self, position: int, most: int) -> int:
        """Return how many of the draft model's likeliest tokens from `position` on are right, counted up to `most`."""
        ranks = self.ranks[position : position + most]
        return next((place for place, rank in enumerate(ranks) if rank), len(ranks))

    def predicted(self, position: int, most: int) -> int:
        """Return the length of a draft of at most `most` tokens that ends before the first predicted rejection."""
        right = self.right(position, most)
        for place in range(min(most, len(self.answer) - position)):
            if (self.stops if place <= right else self.strays)[position + place]:
                return place
        return most
