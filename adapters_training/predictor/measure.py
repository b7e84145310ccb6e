"""How good a predictor is as a classifier, and as a rule that stops drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from adapters_training.predictor.drafts import ACCEPTED, REJECTED, Drafts
from speculation.profiles import DeviceProfile

Rows: TypeAlias = npt.NDArray[np.float64]
Found: TypeAlias = dict[str, float]
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


WISP = Timings(draft_s=0.02, fixed_s=0.08)
"""WISP's own: 50 draft tokens a second (Fig. 1), a round trip of 20 ms and a pass of 60 ms (Table 12, 30 rows)."""
PAPER_FPR = 0.425
"""Share of the rejected tokens that WISP's MLP lets pass (Table 4)."""


def replay(
    drafts: Drafts, chances: Rows, threshold: float, gamma: int, timings: Timings, is_sent: bool = True
) -> Outcome:
    """Return what the logged drafts, cut at `gamma` and behind the first token below `threshold`, would have come to.

    is_sent: whether the token below the threshold is sent, as `edge_drafter.draft_selection` has it; WISP (Eq. 25)
    leaves it out. Its forward is spent in both. Every verdict adds one token.
    """
    keep = drafts.features[:, -1] <= gamma
    number, label = drafts.draft[keep], drafts.label[keep]
    _, first, draft_of = np.unique(number, return_index=True, return_inverse=True)
    below = np.cumsum(chances[keep] < threshold)
    # Tokens below the threshold before this one, in the same draft; a draft's tokens lie together.
    before = np.concatenate([[0], below[:-1]])
    stopped = before - before[first][draft_of]
    sent = stopped == 0
    judged = sent if is_sent else sent & (chances[keep] >= threshold)
    drafted, accepted = int(sent.sum()), int((judged & (label == ACCEPTED)).sum())
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


def compare(
    chances_of: Callable[[Rows], Rows], validation: Drafts, test: Drafts, gamma: int, timings: Timings
) -> Found:
    """Return how good a classifier is on test drafts: AUC; at the threshold with the least time on validation drafts
    the shares of rejected and of accepted tokens that pass (FPR, TPR), and the gain in tokens per second, with and
    without the token below the threshold sent; and TPR and gain at the paper's FPR.
    """
    known, every = chances_of(validation.features), chances_of(test.features)
    threshold = min((0.0, *GRID), key=lambda each: replay(validation, known, each, gamma, timings).token_s)
    rows, labels = test.labelled()
    chances, truth = chances_of(rows), labels == 1.0
    never_s = replay(test, every, 0.0, gamma, timings).token_s
    strict = float(np.quantile(known[validation.label == REJECTED], 1.0 - PAPER_FPR))

    def gain(threshold: float, is_sent: bool = True) -> float:
        return never_s / replay(test, every, threshold, gamma, timings, is_sent).token_s - 1.0

    return {
        "auc": auc(chances, truth), "threshold": threshold, "fpr": float((chances[~truth] >= threshold).mean()),
        "tpr": float((chances[truth] >= threshold).mean()), "gain": gain(threshold),
        "gain_unsent": gain(threshold, False), "tpr_at_paper_fpr": float((chances[truth] >= strict).mean()),
        "gain_at_paper_fpr": gain(strict), "gain_at_paper_fpr_unsent": gain(strict, False),
    }  # fmt: skip


def auc(chances: Rows, truth: npt.NDArray[np.bool_]) -> float:
    """Return the probability that an accepted token gets a higher chance than a rejected one; ties count half."""
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return 0.5
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    return float((ranks[truth].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))
