"""Settings of a fed head's training."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from adapters_training.frozen_target.config import FrozenTargetConfig
from speculation.features import MAX_SIZE
from speculation.wire import MAX_DRAFT_TOKENS, MAX_PROMPT_FEATURES


class FedHeadConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one training of a fed head.

    The recipe is EAGLE-3's (arXiv 2503.01840, Sec. 3.2 and 4), where it names one: the target's own distribution as
    what is learned, several depths of a draft unrolled. It keeps the features on one machine and at the target's width;
    their bytes, the bottleneck and the rounding in training are this project's.
    """

    layers: Annotated[
        tuple[int, ...], Meta(description="layers that make a feature, from 0; none: an early, a middle and a late one")
    ] = ()
    size: Annotated[
        int, Meta(ge=1, le=MAX_SIZE, description="numbers of a feature: bytes of a token on the wire, less 4")
    ] = MAX_SIZE
    prompt_tokens: Annotated[
        int, Meta(ge=1, le=MAX_PROMPT_FEATURES, description="tokens at a prompt's end whose features are sent")
    ] = 16
    width: Annotated[int, Meta(ge=0, description="of the decoder layer; 0: the target's")] = 0
    heads: Annotated[int, Meta(ge=0, description="attention heads; 0: the target's, or as many of its width")] = 0
    intermediate: Annotated[
        int, Meta(ge=0, description="width of the feed-forward part; 0: three times the layer's")
    ] = 0
    short_list: Annotated[
        int, Meta(ge=1, description="tokens that can be drafted: the most frequent ones of the data's answers")
    ] = 4096
    list_samples: Annotated[int, Meta(ge=1, description="records that are counted for that")] = 2000
    depths: Annotated[
        int, Meta(ge=1, le=16, description="tokens of a draft that are unrolled (training-time test of EAGLE-3)")
    ] = 5
    depth_weight: Annotated[
        float, Meta(gt=0.0, le=1.0, description="weight of a depth's loss, relative to that of the depth before")
    ] = 0.8
    gamma: Annotated[
        int, Meta(ge=1, le=MAX_DRAFT_TOKENS, description="draft tokens a verification, where the head is measured")
    ] = 4
    draft: Annotated[
        str, Meta(description="draft model that the head is measured beside (with the target's processor); none: none")
    ] = ""
