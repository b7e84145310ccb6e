"""What is compared: a system is a policy of the verifier and what its robots do, as data."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_verifier.config import Scheduling
from speculation.wire import MAX_DRAFT_TOKENS, Idle
from vlm_nav_evaluation.fleet.workload import FIXED_K, Workload
from vlm_nav_evaluation.virtual_time.timings import Timings


@dataclass(frozen=True)
class Drafting:
    """How a robot drafts: a chain, or the best tree of so many nodes."""

    tokens: int = FIXED_K
    """Levels that are drafted before a draft is sent."""
    predictor: bool = False
    """A chain ends before the first predicted rejection (WISP, Sec. 4.1), but has one token at least."""
    ahead: bool = False
    """Drafting goes on while a draft is away: what continues the commit is kept."""
    most: int = FIXED_K
    """A chain that goes on is sent again, longer, until it has so many tokens (modes with `partial`)."""
    grown: int = 2
    """Tokens by which it must have grown."""
    tree: int = 0
    """Nodes of a tree, 0 for a chain."""


@dataclass(frozen=True)
class System:
    """One way to serve many robots. Raises ValueError, naming the field."""

    name: str
    scheduling: Scheduling
    idle: Idle = Idle.WAIT
    drafting: Drafting | None = None
    """None: the robots do not draft."""
    cached: bool = True
    """Whether keys and values of the prefix are kept; else every pass computes them again, as SLED does."""
    server_draft: int = 0
    """Nodes of the tree that a draft model beside the target proposes, 0 for none."""
    server_depth: int = 0

    def __post_init__(self) -> None:
        if self.server_draft and not 1 <= self.server_depth <= self.server_draft <= MAX_DRAFT_TOKENS:
            raise ValueError(f"system {self.name}: server_depth = {self.server_depth} is outside 1 to server_draft")
        if self.server_draft and self.drafting is not None:
            raise ValueError(f"system {self.name}: drafting and server_draft exclude each other")


@dataclass(frozen=True)
class Setting:
    """Everything that a run is made of, but the number of robots."""

    system: System
    times: Timings
    """`cost` is what target forwards take."""
    workload: Workload
    classes: tuple[str, ...] = ()
    """Service classes that robots have, at random."""
