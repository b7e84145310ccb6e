"""Plan: where one forward over rows of a cache writes, and what each of its tokens may see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Fed:
    """What one forward feeds to which rows of a cache."""

    rows: tuple[int, ...]
    counts: tuple[int, ...]
    ends: tuple[int, ...]
    """Slots of each row that are in use once its tokens are written."""
    committed: tuple[int, ...]
    """How many tokens of each row lengthen its prefix; those behind them are scratch."""
    causal: tuple[bool, ...]
    """Which rows were empty and are fed a chain: plain causal attention, which needs no mask, is right for them."""
    epochs: tuple[int, ...]
    packed: bool
    """Whether the rows lie one behind the other as one sequence; else one below the other, padded to the longest."""

    def split(self, tokens: Tensor) -> list[Tensor]:
        """Return each row's part [n_b, ...] of what a forward has made of its tokens, [B, width, ...] or packed."""
        if self.packed:
            return list(torch.split(tokens[0], list(self.counts)))
        return [tokens[index, :count] for index, count in enumerate(self.counts)]


@dataclass(frozen=True)
class Plan(Fed):
    """Where one forward writes and what it may see, on the host.

    Its B rows lie *padded*, one below the other at the width of the longest, or *packed*, one behind the other as one
    sequence in which every row sees its own keys alone. A chunk of a hundred tokens beside rows that feed one is
    packed, so that nothing is computed for padding; rows much alike are padded, so that none scores the others' keys.
    """

    slots: npt.NDArray[np.int64]
    """Where the tokens go in the pool, [B, width], packed [1, width]; padding goes to the spare block."""
    start: int | None
    """Where the one row begins in the pool, which is read in place; None: rows are gathered."""
    blocks: npt.NDArray[np.int64]
    """What is gathered otherwise, [B, blocks of the longest row], packed [1, blocks of all rows]."""
    view: int
    """Slots that are read of what is gathered: those of the longest row or, of several packed rows, whole blocks."""
    positions: npt.NDArray[np.int64]
    """M-RoPE positions [3, B, width], packed [3, 1, width]."""
    mask: npt.NDArray[np.bool_] | None
    """bool [B, 1, width, view], packed [1, 1, width, view]; None where plain causal attention is right."""


@dataclass(frozen=True)
class TreePlan(Fed):
    """What one captured forward of token trees reads, on the host and small.

    Each token sees its row's prefix and, of the slots behind it, those of its ancestors and its own. B, width, n and S
    are those to which the forward is padded (`speculation.vlm.graphs`).
    """

    slots: npt.NDArray[np.int64]
    """Where the tokens go in the pool [B, width]; padding goes to the spare block."""
    blocks: npt.NDArray[np.int64]
    """The rows' tables [B, n]; what follows a shorter one is the row's own first block."""
    positions: npt.NDArray[np.int64]
    """M-RoPE positions [3, B, width]."""
    lengths: npt.NDArray[np.int64]
    """Slots of the rows' prefixes [B]."""
    tree: npt.NDArray[np.bool_]
    """Which of the S slots behind its row's prefix each token sees [B, width, S]."""
