"""Predicts what work takes on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_verifier.estimator import Estimator
from cloud_verifier.server_draft.costs import DraftCosts


@dataclass
class Costs:
    """Predicted seconds of each kind of work, learned from what was run."""

    passes: Estimator = field(default_factory=Estimator)
    """Estimator of target forwards."""
    images: Estimator = field(default_factory=Estimator)
    """Estimator of encoding images, over `Load.row(image tokens)`."""
    drafts: DraftCosts | None = None
    """Costs of the draft model beside the target; None: there is none."""
