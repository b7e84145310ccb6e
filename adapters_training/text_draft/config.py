"""Every setting of the distillation of a draft model for a language model alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from adapters_training.frozen_target.config import FrozenTargetConfig
from speculation.wire import MAX_DRAFT_TOKENS


class TextDraftConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one distillation."""

    layers: Annotated[
        tuple[int, ...],
        Meta(description="layers of the target, from 0, that the draft is made of; none: a new draft, as below"),
    ] = ()
    width: Annotated[int, Meta(ge=8, description="of a new draft")] = 256
    depth: Annotated[int, Meta(ge=1, le=128, description="decoder layers of a new draft")] = 4
    heads: Annotated[int, Meta(ge=1, description="attention heads of a new draft")] = 4
    intermediate: Annotated[int, Meta(ge=0, description="width of a new draft's feed-forward part; 0: 3 x --width")] = 0
    gamma: Annotated[
        int, Meta(ge=1, le=MAX_DRAFT_TOKENS, description="draft tokens a verification, where it is measured")
    ] = 4
