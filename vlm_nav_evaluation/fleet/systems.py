"""What is compared: a system is a policy of the verifier and what its robots do, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_verifier.config import Scheduling
from speculation.pass_cost import Load, PassCost
from speculation.wire import Idle
from vlm_nav_evaluation.fleet.workload import FIXED_K, Workload


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
    heads: int = 1
    """Places behind a tree where drafting goes on; a forward feeds all of them. SpecEdge, Sec. 4.2, has one; 0: as many
    as are expected to bring most."""
    oracle: bool = False
    """It drafts on at the very place where the verdict on its tree will end, which no robot can know: a bound."""


@dataclass(frozen=True)
class Exit:
    """An early exit of the target, which names the verdict during a pass."""

    layer: int
    after: float
    """What share of the pass is over then."""
    right: float
    """How often it names the verdict that the pass ends with."""


@dataclass(frozen=True)
class System:
    """One way to serve many robots."""

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
    exits: tuple[Exit, ...] = ()
    """The first one that is right is as likely as it is measured, and all behind it are right, too."""


@dataclass(frozen=True)
class Times:
    """Says how long passes, drafts and the link take, in seconds."""

    name: str
    cost: PassCost
    """A target forward."""
    draft_s: float = 0.02
    """T_p: a draft forward on a robot; WISP's robots draft 50 tokens a second."""
    one_way_s: float = 0.01
    """T_c: a message's way."""
    server_draft: PassCost = field(default=PassCost(0.0, 0.0, 0.0, 0.0))
    """A forward of the draft model beside the target."""

    def pass_s(self, load: Load) -> float:
        """Return the seconds of a target forward."""
        return self.cost.seconds(load)


@dataclass(frozen=True)
class Setting:
    """Everything that a run is made of, but the number of robots."""

    system: System
    times: Times
    workload: Workload
    classes: tuple[str, ...] = ()
    """Service classes that robots have, at random."""
