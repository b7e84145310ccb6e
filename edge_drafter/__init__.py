"""The edge's policy: what to draft, when to send, what to do with rumours. No torch, no sockets, any clock."""

from edge_drafter.config import AUTO, DraftingConfig, Mode, QueuePolicy
from edge_drafter.drafter import Drafter
from edge_drafter.model import DraftModel, Link, LinkLost, PacedModel
from edge_drafter.stats import DecodingStats, Interruption, StepInterrupted, StepRequest, StepResult

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
