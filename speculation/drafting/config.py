"""The settings that turn one drafter into the papers' methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from speculation.wire import MAX_DRAFT_TOKENS, Idle

AUTO = "auto"


class Mode(str, Enum):
    """Who decodes: the target alone, the draft alone, both in turn, both at once, or both in the cloud."""

    CLOUD = "cloud"
    EDGE = "edge"
    SD = "sd"
    FSD = "fsd"
    SERVER_SD = "server_sd"


class QueuePolicy(str, Enum):
    """Which branch is pre-drafted next (Early Exits, Algorithm 1 uses the priority)."""

    PRIORITY = "priority"
    FIFO = "fifo"
    RANDOM = "random"


@dataclass(frozen=True)
class DraftingConfig:
    """How one step is decoded.

    self_draft: the verifier's own draft model drafts gamma tokens per verification, beside the target.
    gamma: draft tokens per verification, or "auto" (the controller's choice).
    branches: how many continuations may be pre-drafted per verification.
    stop_below: a draft ends with the first token whose probability to be accepted is below this, by the predictor or,
        without one, by the draft itself: the first predicted rejection (WISP, Sec. 4.1); 0 never stops.
    max_nodes: the pre-draft stops growing when the tree holds this many nodes.
    resend_s: an unanswered draft is repeated after this many seconds; rounds are idempotent.
    patience_s: no commit for this long counts as a lost link, although the verifier may still answer pings.
    """

    drafts: bool = True
    predraft: bool = False
    use_early_tokens: bool = False
    idle: Idle = Idle.WAIT
    self_draft: bool = False
    gamma: int | str = 4
    branches: int = 3
    stop_below: float = 0.0
    queue_policy: QueuePolicy = QueuePolicy.PRIORITY
    seed: int = 0
    max_nodes: int = 64
    resend_s: float = 2.0
    patience_s: float = 20.0

    def __post_init__(self) -> None:
        if isinstance(self.gamma, str):
            if self.gamma != AUTO:
                raise ValueError(f"gamma is {self.gamma!r}; give 0 to {MAX_DRAFT_TOKENS} or '{AUTO}'")
        elif not 0 <= self.gamma <= MAX_DRAFT_TOKENS:
            raise ValueError(f"gamma is {self.gamma}; give 0 to {MAX_DRAFT_TOKENS} or '{AUTO}'")
        for name, least in (("branches", 0), ("max_nodes", 1), ("resend_s", 0), ("patience_s", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least {least}")
        if not 0.0 <= self.stop_below <= 1.0:
            raise ValueError(f"stop_below is {self.stop_below}; give 0 (never stop) to 1")
        if self.predraft and not self.drafts:
            raise ValueError("predraft needs drafts")

    @classmethod
    def of(cls, mode: Mode | str, **changes: Any) -> DraftingConfig:
        """Return the settings of `mode` with `changes`. ValueError for an unknown mode, naming the known ones."""
        try:
            flags = _MODES[Mode(mode)]
        except ValueError:
            raise ValueError(f"mode is {str(mode)!r}; known modes are {', '.join(m.value for m in Mode)}") from None
        return replace(cls(**flags), **changes)

    @property
    def fixed_gamma(self) -> int:
        """The declared draft length; the class default where the controller chooses."""
        return self.gamma if isinstance(self.gamma, int) else 4

    @property
    def needs_link(self) -> bool:
        """False where the draft model answers alone."""
        return self.drafts or self.idle is Idle.DECODE


_MODES: dict[Mode, dict[str, Any]] = {
    Mode.CLOUD: {"drafts": False, "idle": Idle.DECODE},
    Mode.EDGE: {"drafts": False},
    Mode.SD: {},
    Mode.FSD: {"predraft": True, "use_early_tokens": True},
    Mode.SERVER_SD: {"drafts": False, "idle": Idle.DECODE, "self_draft": True},
}
