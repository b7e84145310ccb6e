"""Attention of a model in training: torch's own but for bfloat16 on a CPU, where matrix products are faster.

torch's CPU kernel for bfloat16 takes 1.7 times their time for forward and backward at the embedded pair's sizes (325
tokens of 5 heads, 64 wide; docs/training.md has the figures). Results are equal up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

TRAINING = "sdpa_in_training"


def train_attention(model: Any) -> None:
    """Let a model that attends by sdpa, vision tower and decoder, attend by the function of this file."""
    for config in (model.config, model.config.text_config, model.config.vision_config):
        if config._attn_implementation == "sdpa":
            config._attn_implementation = TRAINING


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return what sdpa does, [B, width, heads, head_dim]; a mask is boolean."""
    rounded = query.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    masked = attention_mask is not None or settings.get("is_causal") is False
    if not rounded or not masked or key.shape[1] != query.shape[1]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    scores = torch.matmul(query * settings["scaling"], key.transpose(2, 3))
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    shares = scores.softmax(-1, dtype=torch.float32)
    return torch.matmul(shares, value).transpose(1, 2).contiguous(), None


AttentionInterface.register(TRAINING, _attend)
