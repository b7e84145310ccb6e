"""The edge's policy: what to draft, when to send, what to do with rumours. No torch, no sockets, any clock."""

from speculation.drafting.config import AUTO, DraftingConfig, Mode, QueuePolicy
from speculation.drafting.drafter import Drafter
from speculation.drafting.model import DraftModel, Link, LinkLost, PacedModel
from speculation.drafting.stats import DecodingStats, Interruption, StepInterrupted, StepRequest, StepResult

__all__ = [
    "AUTO",
    "DecodingStats",
    "DraftModel",
    "Drafter",
    "DraftingConfig",
    "Interruption",
    "Link",
    "LinkLost",
    "Mode",
    "PacedModel",
    "QueuePolicy",
    "StepInterrupted",
    "StepRequest",
    "StepResult",
]
