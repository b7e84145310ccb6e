"""The edge: draft sources, token tree, policy, step loop, the link to the verifier. `EdgeDecoder` is its face.

The policy knows no torch and no sockets and takes any clock; `decoder` joins it with a model, `link` with a network.
"""

from edge_drafter.declared_times import PacedFedModel, PacedModel
from edge_drafter.drafter import Drafter, sources_of
from edge_drafter.protocols import DraftModel, FedModel, Link, LinkLost, VerifierBusy
from edge_drafter.settings import AUTO, BranchOrder, DraftingConfig, Mode
from edge_drafter.sources import DraftSource
from edge_drafter.stats import DecodingStats
from edge_drafter.step import Interruption, StepInterrupted, StepRequest, StepResult

__all__ = [
    "AUTO",
    "BranchOrder",
    "DecodingStats",
    "DraftModel",
    "DraftSource",
    "Drafter",
    "DraftingConfig",
    "FedModel",
    "Interruption",
    "Link",
    "LinkLost",
    "Mode",
    "PacedFedModel",
    "PacedModel",
    "StepInterrupted",
    "StepRequest",
    "StepResult",
    "VerifierBusy",
    "sources_of",
]
