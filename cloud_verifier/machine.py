"""Groups what computes for a verifier, and what is known of its times before anything ran."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from cloud_verifier.config import Limits
from cloud_verifier.estimator import Costs, DraftCosts, Estimator
from cloud_verifier.interfaces import DraftEngine, Engine, ModelInfo
from speculation.pass_cost import PassCost
from speculation.profiles import RAW, DeviceProfile


@dataclass(frozen=True)
class Machine:
    """The engine of the target, and of the draft model beside it where there is one."""

    engine: Engine
    draft_engine: DraftEngine | None = None
    profile: DeviceProfile = RAW
    """Times that forwards are declared to take at least."""
    pass_cost: PassCost | None = None
    """Measured cost of target passes; None: it is learned while serving."""
    image_cost: PassCost | None = None
    """Measured cost of encoding images, over `Load.row(image tokens)`."""

    def serves(self, limits: Limits) -> ModelInfo:
        """Return the target as robots get it: with as many frames a question as the limits allow."""
        model, frames = self.engine.model, limits.frames
        if model.sight is None or not frames:
            return model
        return replace(model, sight=msgspec.structs.replace(model.sight, frames=frames))

    def costs(self) -> Costs:
        """Return what work is predicted to take before any was done."""
        drafts = DraftCosts() if self.draft_engine is not None else None
        return Costs(Estimator(self.pass_cost), Estimator(self.image_cost), drafts)
