"""Defines what a scheduling policy is given and what it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cloud_verifier.choice import Choice
from cloud_verifier.estimator import Costs
from cloud_verifier.step import Step


@dataclass(frozen=True)
class Budget:
    """A budget is what one batch may take."""

    rows: int
    """Steps in one forward."""
    tokens: int
    """Tokens of verifications and decodes in one forward, each step's root among them. Memory is no part of it: what a
    step may come to hold is reserved when it begins, see `cloud_verifier.kv_admission`."""
    collect_s: float
    """Seconds that a ready step may wait for others to share its forward."""
    chunk: int = 0
    """Tokens of prefills in one forward, at most; deadlines may leave fewer. 0: as many as the estimates allow."""
    guard_s: float = 0.01
    """delta of WISP, Eq. 17: seconds before its latest start from which on a step is critical."""
    patience_s: float = 2.0
    """Steps that wait for longer go first, whatever their class, a quarter of the rows of a batch at most."""


@dataclass(frozen=True)
class Batch:
    """A batch runs next: images, one after another, then one target forward of chunks and choices. Falsy: nothing does.

    An image is work as long as many forwards: with one, a batch better has nothing else.
    """

    encodes: tuple[Step, ...] = ()
    chunks: Mapping[Step, int] = field(default_factory=dict)
    """How many tokens of its prefill a step feeds, 1 to `Prefill.left`; its image is encoded."""
    choices: Mapping[Step, Choice] = field(default_factory=dict)
    """No choice is to wait. A step whose last chunk is fed may have one, too: its first tokens share the forward."""
    waiting: tuple[Step, ...] = ()
    """Steps that chose to wait for their edges."""
    again: float | None = None
    """Time at which there will be work without any further message, None for never; it counts where the batch is
    empty."""
    min_tokens_per_s: float = 0.0
    """Tokens per second that one more level of the drafts that are made for it must bring."""

    def __bool__(self) -> bool:
        return bool(self.encodes or self.chunks or self.choices)


class Policy(Protocol):
    """A policy chooses which steps make the next batch.

    A policy knows no message, no socket and no model, and changes no step: it reads `Step` (request, answer, drafts,
    ready since when), asks each once what it would do by itself (`policies.step_choice`), and predicts what work costs
    by `costs`. `steps` are those of all sessions, also those that have nothing to run.
    """

    def schedule(self, steps: Collection[Step], now: float, costs: Costs, budget: Budget) -> Batch:
        """Return what to run now, or when to ask again. It will be run: a policy may note what it returned."""
