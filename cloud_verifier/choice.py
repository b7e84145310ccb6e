"""Defines what a step may do next, and the choice that a policy makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cloud_verifier.tree import NOTHING, Tree


class Act(str, Enum):
    """An act is one thing that may be done with a step."""

    VERIFY = "verify"
    """Verify a draft of the edge."""
    HINT = "hint"
    """Verify what followed in an earlier answer."""
    SELF = "self"
    """Verify a draft of the verifier's own draft model."""
    DECODE = "decode"
    """Decode one token."""
    WAIT = "wait"
    """Wait for a draft of the edge."""


@dataclass(frozen=True)
class Choice:
    """A choice is what a step does next."""

    act: Act
    tree: Tree = NOTHING
    """Draft that is verified."""
    size: int = 0
    """Tokens of the draft that is to be made here (SELF)."""
    depth: int = 0
    """Most levels of that draft; 0 makes it a chain."""
    drafting_s: float | None = None
    """Seconds that the draft model is expected to take for it without its prefill; None: as long as for all levels."""
    min_tokens_per_s: float = 0.0
    """Tokens per second that one more level of that draft must bring."""
    gain: float = 1.0
    """Tokens that it is expected to commit."""
    until: float = 0.0
    """Time at which a WAIT must be decided again."""
    declined: tuple[Act, ...] = ()
    """Acts that were possible and not taken."""

    @property
    def tokens(self) -> int:
        """Tokens that a pass feeds for it behind the cached ones: the answer's last and a draft."""
        return 1 + max(len(self.tree.tokens), self.size)
