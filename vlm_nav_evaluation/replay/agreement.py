"""Do two deciders agree about the same frames? Pairs of actions in, rates out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from speculation.language.prompts import NOT_HERE, ActionKind, NavigationAction
from vlm_nav_evaluation.tables import Column, figures_table

Pair: TypeAlias = tuple[NavigationAction | None, NavigationAction]
"""What was answered (None: no action could be read) and what should have been."""
KINDS = tuple(kind.value for kind in ActionKind)
"""The last, `not here`, has a row and a column of the confusion only where it occurs."""


def agreement(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how often the answers equal the reference: as a whole, in kind, left against right, and about stopping.

    An unreadable answer agrees with none.

    confusion: rows are the reference's KINDS, columns the answers', the last one unreadable. left_right: the same for
    frames on which both turn. stop_precision / stop_recall: None without stops. Rates are None without pairs.
    """
    count = len(pairs)
    kinds = KINDS if any(NOT_HERE in pair for pair in pairs) else KINDS[:-1]
    confusion = [[0] * (len(kinds) + 1) for _ in kinds]
    for answer, truth in pairs:
        column = len(kinds) if answer is None else KINDS.index(answer.kind.value)
        confusion[KINDS.index(truth.kind.value)][column] += 1
    left, right, stop = (
        KINDS.index(kind.value) for kind in (ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT, ActionKind.STOP)
    )
    stopped = sum(row[stop] for row in confusion)
    turns = {
        "left as left": confusion[left][left],
        "left as right": confusion[left][right],
        "right as left": confusion[right][left],
        "right as right": confusion[right][right],
    }
    turned = sum(turns.values())
    return {
        "frames": count,
        "exact": _rate(sum(answer == truth for answer, truth in pairs), count),
        "kind": _rate(sum(row[index] for index, row in enumerate(confusion)), count),
        "unreadable": sum(row[-1] for row in confusion),
        "confusion": confusion,
        "left_right": turns,
        "left_right_swapped": _rate(turns["left as right"] + turns["right as left"], turned),
        "stop_precision": _rate(confusion[stop][stop], stopped),
        "stop_recall": _rate(confusion[stop][stop], sum(confusion[stop])),
    }


COLUMNS = (
    Column("frames", "frames", "d", 1),
    Column("exact", "exact", ".1%"),
    Column("kind", "kind", ".1%"),
    Column("left/right swapped", "left_right_swapped", ".1%"),
    Column("stop precision", "stop_precision", ".1%"),
    Column("stop recall", "stop_recall", ".1%"),
    Column("unreadable", "unreadable", "d", 1),
)


def agreement_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rates of several deciders as aligned text."""
    return figures_table("", rows, COLUMNS)


def percent(rate: float | None) -> str:
    """Return a rate in percent; '-' where there is none."""
    return "-" if rate is None else f"{rate:.1%}"


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None
