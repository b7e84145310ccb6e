"""How good a predictor is as a classifier, and as a rule that stops drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adapters_training.predictor.drafts import ACCEPTED, Drafts
from speculation.profiles import DeviceProfile

Rows = npt.NDArray[np.float64]
GRID = tuple(round(0.02 * step, 2) for step in range(1, 50))
"""Thresholds that are tried."""


@dataclass(frozen=True)
class Timings:
    """What a draft costs in mode sd, seconds."""

    draft_s: float
    """Seconds that a draft token takes."""
    fixed_s: float
    """Seconds that round trip and verification take."""

    @classmethod
    def of(cls, profile: DeviceProfile) -> Timings:
        """Return a device profile's. Raises ValueError for one that declares no times."""
        if profile.draft_s <= 0.0 or profile.verify_s + profile.one_way_s <= 0.0:
            raise ValueError(f"profile {profile.name} declares no times, which the choice of a threshold needs")
        return cls(profile.draft_s, profile.verify_s + 2.0 * profile.one_way_s)


@dataclass(frozen=True)
class Outcome:
    """What logged drafts would have come to."""

    token_s: float
    """Seconds per committed token."""
    wasted_s: float
    """Wasted drafting seconds (WDT) per committed token."""
    length: float
    """Mean tokens of a draft."""
    acceptance: float
    """Accepted over drafted tokens."""


def replay(drafts: Drafts, chances: Rows, threshold: float, gamma: int, timings: Timings) -> Outcome:
    """Return what the logged drafts, cut at `gamma` and behind the first token below `threshold`, would have come to.

    The token below the threshold is sent, as `edge_drafter.draft_selection` has it. Every verdict adds one token.
    """
    keep = drafts.features[:, -1] <= gamma
    number, label = drafts.draft[keep], drafts.label[keep]
    _, first, draft_of = np.unique(number, return_index=True, return_inverse=True)
    below = np.cumsum(chances[keep] < threshold)
    # Tokens below the threshold before this one, in the same draft; a draft's tokens lie together.
    before = np.concatenate([[0], below[:-1]])
    stopped = before - before[first][draft_of]
    sent = stopped == 0
    drafted, accepted = int(sent.sum()), int((sent & (label == ACCEPTED)).sum())
    # The forward that proposed the rejected token is wasted, and those behind it.
    committed = accepted + len(first)
    seconds = drafted * timings.draft_s + len(first) * timings.fixed_s
    wasted = (drafted - accepted) * timings.draft_s
    return Outcome(seconds / committed, wasted / committed, drafted / len(first), accepted / drafted)


def choose_threshold(drafts: Drafts, chances: Rows, gamma: int, timings: Timings) -> float:
    """Return the threshold with the least time plus waste among those that cost no time; 0 (never stop) where all do.

    Seconds per committed token in `replay`, cost against drafts that never stop. The sum, in which a wasted second of
    drafting counts like a second of waiting, has its minimum inside the range; the least waste alone would lie where
    time just begins to be lost, and lose some on other drafts.
    """
    never = replay(drafts, chances, 0.0, gamma, timings)
    best, least = 0.0, never.token_s + never.wasted_s
    for threshold in GRID:
        outcome = replay(drafts, chances, threshold, gamma, timings)
        total = outcome.token_s + outcome.wasted_s
        if outcome.token_s <= never.token_s and total < least:
            best, least = threshold, total
    return best


def auc(chances: Rows, truth: npt.NDArray[np.bool_]) -> float:
    """Return the probability that an accepted token gets a higher chance than a rejected one; ties count half."""
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return 0.5
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    return float((ranks[truth].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))
