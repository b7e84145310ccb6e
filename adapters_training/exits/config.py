"""Settings of a training of exits, with the Early Exits paper's defaults (see `frozen_target.config`): an adapter after
each layer but the last, trained on the LM head's loss. The paper names no rank; its 3.26 M weights an exit at a width
of 4096 are a bottleneck of about 400.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from adapters_training.frozen_target.config import FrozenTargetConfig


class Loss(str, Enum):
    """What an exit learns: the data's tokens (the paper's), the last layer's distribution, or both."""

    CE = "ce"
    KL = "kl"
    MIX = "mix"


class ExitsConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one training of exits."""

    layers: Annotated[tuple[int, ...], Meta(description="exit after these layers, from 0; none: all but the last")] = ()
    rank: Annotated[int, Meta(ge=1, description="width of the adapters' bottleneck")] = 400
    loss: Annotated[Loss, Meta(description="ce: the data's tokens; kl: the last layer's distribution; mix: both")] = (
        Loss.CE
    )
    ce_share: Annotated[float, Meta(ge=0.0, le=1.0, description="with loss mix: weight of ce; kl has the rest")] = 0.33
