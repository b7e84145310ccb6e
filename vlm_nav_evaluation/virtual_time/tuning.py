"""Every mode at its best: what it drafts at a place, searched on virtual time by successive halving.

The same number of candidates, on the same answers, for every mode; the answers that are reported are others (`split`).
A candidate changes the shape of drafts alone, and what the verifier does without one where the mode leaves that to its
ledger. When a mode drafts, and when it sends, is the mode.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from edge_drafter import DraftingConfig, Mode
from edge_drafter.settings import read_changes
from speculation.wire import Idle
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time.decoding import run_mode
from vlm_nav_evaluation.virtual_time.recording import Recording
from vlm_nav_evaluation.virtual_time.timings import Timings

GAMMAS = tuple(range(1, 13))
"""Depths of the drafts of `server_sd`."""
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
"""Values of gamma on the edge."""
SHAPES = ((1, 0), (2, 16), (2, 40), (3, 40))
"""Width and tokens of a draft; 0: a chain of gamma."""
LEAVES = (1, 8)
SIZES = (0, 8, 16, 24, 32)
"""Tokens of a tree of `server_sd`, the largest as in SpecEdge, Appendix C; 0: a chain."""
BUDGET, QUICK_BUDGET = 60, 10
"""Candidates of every mode, as shipped among them: where there are more they are sampled. So many in a quick look."""
RUNGS = ((2, 20), (4, 7), (12, 1))
"""On how many answers candidates are tried, and how many of them stay: 60 on two, 20 on four, 7 on twelve."""
TUNED_ON, SHARE = RUNGS[-1][0], 0.3
"""Answers to tune on at most, and the share of a recording."""
TUNED, NO_NGRAMS = "tuned", "n-grams off"
"""Ends of an arm's name."""


def split(recording: Recording) -> tuple[Recording, Recording]:
    """Return the answers to tune on, the first ones, and those to report. Raises ValueError for a single answer."""
    steps = recording.steps
    if len(steps) < 2:
        raise ValueError("one answer cannot be both tuned on and reported; give two at least (--steps)")
    count = max(1, min(TUNED_ON, round(SHARE * len(steps))))
    return replace(recording, steps=steps[:count]), replace(recording, steps=steps[count:])


def is_tuned(mode: str) -> bool:
    """Return whether a mode has drafts whose shape can be searched."""
    settings = DraftingConfig.of(mode)
    return settings.drafts or settings.self_draft


def changes_of(mode: str, drafting: str) -> dict[str, Any]:
    """Return changes as `--drafting` takes them as those of `run_mode`: `server_sd` drafts, though not on the edge."""
    return {"text": drafting} if Mode(mode).drafts else read_changes(drafting)


def candidates(mode: str, base: str = "", budget: int | None = None) -> list[str]:
    """Return what is tried for a mode, as `--drafting` takes it: `base` as it is, then changes of it.

    These are `budget` in all, `BUDGET` where it is None.
    """
    budget = budget or BUDGET
    settings = DraftingConfig.of(mode, base)
    axes: dict[str, Sequence[Any]]
    if settings.self_draft:
        axes = {"gamma": GAMMAS, "draft_tokens": SIZES}
    else:
        axes = {"gamma": LENGTHS, "width,draft_tokens": SHAPES, "leaves": LEAVES}
    if settings.idle is Idle.LEDGER:
        axes["idle"] = (Idle.LEDGER.name.lower(), Idle.WAIT.name.lower())
    found = []
    for values in product(*axes.values()):
        given: dict[str, Any] = {}
        for names, value in zip(axes, values, strict=True):
            given.update(zip(names.split(","), value if isinstance(value, tuple) else (value,), strict=True))
        found.append(",".join(filter(None, (base, *(f"{name}={value}" for name, value in given.items())))))
    if len(found) >= budget:
        found = random.Random(0).sample(found, budget - 1)
    return [base, *found]


def tune(
    mode: str, recording: Recording, timings: Timings, base: str = "", budget: int | None = None, **changes: Any
) -> str:
    """Return what a mode drafts where it decodes these answers in the least time, as `--drafting` takes it.

    base: changes that all candidates have; that alone is the mode as shipped. budget: as in `candidates`. changes: as
    in `run_mode`.
    """
    left = candidates(mode, base, budget)
    for answers, kept in RUNGS:
        some = replace(recording, steps=recording.steps[:answers])
        seconds = [_seconds(mode, some, timings, {**changes, **changes_of(mode, text)}) for text in left]
        # The sort is stable: of equals the one that is shipped wins.
        left = [left[place] for place in sorted(range(len(left)), key=seconds.__getitem__)[:kept]]
    return left[0]


def _seconds(mode: str, recording: Recording, timings: Timings, changes: Mapping[str, Any]) -> float:
    return sum(each.stats.total_s for each in run_mode(mode, recording, timings, **changes))


def arms_at_best(
    modes: Sequence[str],
    recording: Recording,
    timings: Timings,
    base: str = "",
    budget: int | None = None,
    **changes: Any,
) -> tuple[list[Arm], dict[str, str]]:
    """Return the arms of a table and what the tuned ones draft, by arm, as `--drafting` takes it.

    Every mode as shipped and tuned, and one that looks at earlier answers also without them: an arm's changes are those
    of `run_mode`. recording: answers to tune on. base, changes: what all arms have. budget: as in `candidates`.
    """
    arms: list[Arm] = []
    drafting: dict[str, str] = {}
    for mode in modes:
        drafts = is_tuned(mode) and Mode(mode).drafts
        variants = {mode: base if drafts else ""}
        if drafts and DraftingConfig.of(mode, base).ngrams:
            variants[f"{mode}, {NO_NGRAMS}"] = ",".join(filter(None, (base, "ngrams=off")))
        for name, text in variants.items():
            arms.append(Arm(name, mode, {**changes, **({"text": text} if text else {})}))
            if is_tuned(mode):
                best = tune(mode, recording, timings, text, budget, **changes)
                drafting[f"{name}, {TUNED}"] = best
                arms.append(Arm(f"{name}, {TUNED}", mode, {**changes, **changes_of(mode, best)}))
    return arms, drafting
