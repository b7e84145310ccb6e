"""Describes a fed head: whose it is, which layers feed it, how large it is (no torch)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from speculation.features import MAX_SIZE
from speculation.wire import MAX_PROMPT_FEATURES, Layer, Name, Token

FORMAT = 1
Width = Annotated[int, Meta(ge=2, le=2**16)]


class FedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of fed_head.json. Raises ValueError, naming the field, for sizes that do not fit together."""

    format: int = FORMAT
    target: Name
    """Fingerprint of the target that feeds it."""
    tokenizer: Name
    """Fingerprint of the target's tokenizer."""
    vocabulary: Annotated[int, Meta(gt=0, lt=2**20)]
    """Tokens of that tokenizer."""
    layers: Annotated[tuple[Layer, ...], Meta(min_length=1, max_length=8)]
    """Layers of the target whose outputs make a feature, from 0, ascending."""
    hidden: Width
    """Width of the target."""
    size: Annotated[int, Meta(ge=1, le=MAX_SIZE)]
    """Numbers of a feature."""
    prompt_tokens: Annotated[int, Meta(ge=0, le=MAX_PROMPT_FEATURES)]
    """Tokens at the prompt's end that it continues from."""
    width: Width
    """Width of the decoder layer."""
    heads: Annotated[int, Meta(ge=1, le=256)]
    """Attention heads of the decoder layer."""
    intermediate: Width
    """Width of its feed-forward part."""
    short_list: Annotated[tuple[Token, ...], Meta(min_length=1)]
    """Tokens that it knows and can draft, ascending; all others are one token to it, which it never drafts."""
    rope_theta: Annotated[float, Meta(gt=1.0)] = 1e4
    features: Name = ""
    """Fingerprint of its features: of the bottleneck's weights and what it reads. Both sides must have the same."""

    def __post_init__(self) -> None:
        if list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers {list(self.layers)} must be distinct and ascending")
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of two numbers for each of {self.heads} heads")
        ascending = all(a < b for a, b in zip(self.short_list, self.short_list[1:], strict=False))
        if not ascending or self.short_list[-1] >= self.vocabulary:
            raise ValueError(f"short_list must be ascending tokens in 0..{self.vocabulary - 1}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads
