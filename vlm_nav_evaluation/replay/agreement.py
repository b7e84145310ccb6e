"""Do two deciders agree about the same frames? Pairs of actions in, rates out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from speculation.language.prompts import STOP, ActionKind, NavigationAction
from vlm_nav_evaluation.tables import Column, figures_table

Pair: TypeAlias = tuple[NavigationAction | None, NavigationAction]
"""What was answered (None: no action could be read) and what should have been."""
TURNS = (ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT)


def agreement(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how often the answers equal the reference: as a whole, in kind, left against right, and about stopping.

    An unreadable answer agrees with none. left_right_swapped: of the frames on which both turn. Rates are None where
    there is nothing to count.
    """
    read = [(answer, truth) for answer, truth in pairs if answer is not None]
    turned = [answer.kind is truth.kind for answer, truth in read if answer.kind in TURNS and truth.kind in TURNS]
    stopped = [truth == STOP for answer, truth in read if answer == STOP]
    return {
        "frames": len(pairs),
        "exact": _rate(sum(answer == truth for answer, truth in read), len(pairs)),
        "kind": _rate(sum(answer.kind is truth.kind for answer, truth in read), len(pairs)),
        "unreadable": len(pairs) - len(read),
        "left_right_swapped": _rate(turned.count(False), len(turned)),
        "stop_precision": _rate(sum(stopped), len(stopped)),
        "stop_recall": _rate(sum(stopped), sum(truth == STOP for _, truth in pairs)),
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
