"""Attention of a decoder over rows of a cache, under a name of our own among those that transformers knows.

The vision tower, and every other model in the process, keeps transformers' own functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.plan import Plan

BY_ROWS = "sdpa_by_rows"


def attend_by_rows(text: Any) -> None:
    """Let a decoder that attends by sdpa score each row of a packed forward alone; one that does not stays as it is."""
    if text.config._attn_implementation == "sdpa":
        text.config._attn_implementation = BY_ROWS


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    plan: Plan | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return what sdpa does, [B, width, heads, head_dim]; of packed rows each is scored against its own keys alone.

    Over all keys of a packed pass at once, two prompts of 1000 tokens would cost the scores of one of 2000. Without a
    plan, where the model's own forward is called, it is sdpa.
    """
    if plan is None or not plan.packed or len(plan.rows) == 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    assert attention_mask is not None
    parts: list[Tensor] = []
    start = begin = 0
    for count, end, committed in zip(plan.counts, plan.ends, plan.committed, strict=True):
        rows, seen = slice(start, start + count), slice(begin, begin + end)
        # A prompt's first tokens are plainly causal, which needs no mask.
        mask = None if committed and count == end else attention_mask[:, :, rows, seen]
        row = query[:, :, rows], key[:, :, seen], value[:, :, seen]
        parts.append(sdpa_attention_forward(module, *row, mask, **settings)[0])
        start, begin = start + count, begin + blocks_for(end) * BLOCK  # packed rows fill whole blocks
    return torch.cat(parts, dim=1), None


AttentionInterface.register(BY_ROWS, _attend)
# transformers makes no mask at all for a name that it does not know.
AttentionMaskInterface.register(BY_ROWS, sdpa_mask)
