"""The forward of a model in training over packed questions: each token meets only those that it may see.

A row holds an image and several questions about it; a question sees the image and itself (`packing`). A mask over
whole rows computes all pairs and leaves most of them out, and rows are as long as the longest. Here all tokens of a
batch stand in one line without padding; prefixes attend to themselves, questions to their row's prefix and themselves.

torch's CPU kernel for bfloat16 takes two to three times as long as plain matrix products for forward and backward at
the embedded pair's sizes, which are used in its place. The patches of an image are embedded by one product, too: a
convolution whose steps are as long as its kernel is one. Results are equal up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from adapters_training.tensors import TensorFields

TRAINING = "sdpa_in_training"


@dataclass(frozen=True)
class Layout(TensorFields):
    """Where the T tokens of B packed rows stand in one line, and what each of the Q questions may see.

    P is the length of a row's prefix, L that of the longest question.
    """

    tokens: Tensor
    """int64 [T], places of the line's tokens in the rows, flattened."""
    prefixes: Tensor
    """int64 [B, P], places in the line."""
    questions: Tensor
    """int64 [Q, L], places in the line; a short question repeats place 0."""
    keys: Tensor
    """int64 [Q, P + L], places in the line of what a question may see: its row's prefix, then itself."""
    seen: Tensor
    """bool [1, 1, L, P + L], which of these each of its tokens sees."""
    back: Tensor
    """int64 [T], where the line's tokens stand among all prefixes' and then all questions' places."""

    def line(self, rows: Tensor) -> Tensor:
        """Return the tokens [1, T, width] of rows [B, N, width]."""
        return rows.flatten(0, 1).index_select(0, self.tokens)[None]

    def rows(self, line: Tensor, like: Tensor) -> Tensor:
        """Return rows shaped as `like`, with zeros where they are padded, of a line [1, T, width]."""
        empty = line.new_zeros(like.shape[0] * like.shape[1], line.shape[-1])
        return empty.index_copy(0, self.tokens, line[0]).view(like.shape[0], like.shape[1], -1)


def layout(blocks: Tensor, prefix: int) -> Layout:
    """Return the layout of rows; `blocks` int64 [B, N] is 0 in the prefix, k in question k, negative in padding.

    The blocks of a row stand one after the other, and its first `prefix` tokens are block 0.
    """
    count, width = blocks.shape
    present = blocks >= 0
    tokens = present.flatten().nonzero()[:, 0]
    line = torch.zeros(count * width, dtype=torch.long)
    line[tokens] = torch.arange(len(tokens))
    line = line.view(count, width)
    prefixes = line[:, :prefix]
    spans = [
        (row, line[row][blocks[row] == number])
        for row in range(count)
        for number in range(1, int(blocks[row].max()) + 1)
    ]
    longest = max((len(span) for _, span in spans), default=0)
    questions = torch.zeros(len(spans), longest, dtype=torch.long)
    back = torch.zeros(len(tokens), dtype=torch.long)
    back[prefixes.flatten()] = torch.arange(prefixes.numel())
    for place, (_, span) in enumerate(spans):
        questions[place, : len(span)] = span
        back[span] = prefixes.numel() + place * longest + torch.arange(len(span))
    own = torch.tensor([row for row, _ in spans], dtype=torch.long)
    keys = torch.cat([prefixes[own], questions], dim=1)
    itself = torch.ones(longest, longest, dtype=torch.bool).tril()
    seen = torch.cat([torch.ones(longest, prefix, dtype=torch.bool), itself], dim=1)[None, None]
    return Layout(tokens, prefixes, questions, keys, seen, back)


def for_training(model: Any) -> None:
    """Let a model that attends by sdpa, vision tower and decoder, compute by the functions of this file."""
    for config in (model.config, model.config.text_config, model.config.vision_config):
        if config._attn_implementation == "sdpa":
            config._attn_implementation = TRAINING
    patches = model.model.visual.patch_embed
    patches.forward = partial(_embed, patches.proj)


def _embed(kernel: nn.Conv3d, patches: Tensor) -> Tensor:
    """Return the embeddings [n, width] of patches [n, pixels] by a kernel of one patch's size."""
    return F.linear(patches.to(kernel.weight.dtype), kernel.weight.flatten(1), kernel.bias)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Layout | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return what sdpa does, [B, width, heads, head_dim]; a mask is boolean, a layout is of one line (B is 1)."""
    if isinstance(attention_mask, Layout):
        return _attend_line(query, key, value, attention_mask, settings["scaling"]), None
    rounded = query.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    masked = attention_mask is not None or settings.get("is_causal") is False
    if not rounded or not masked or key.shape[1] != query.shape[1]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    return _products(query, key, value, attention_mask, settings["scaling"]).transpose(1, 2).contiguous(), None


def _attend_line(query: Tensor, key: Tensor, value: Tensor, where: Layout, scaling: float) -> Tensor:
    """Return the attention [1, T, heads, head_dim] of a line of tokens: query, key, value are [1, heads, T, head_dim].

    Keys may have fewer heads than queries.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))

    def at(line: Tensor, places: Tensor) -> Tensor:
        return line.index_select(0, places.flatten()).view(*places.shape, *line.shape[1:]).transpose(1, 2)

    length = where.prefixes.shape[1]
    causal = torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril()
    parts = [(where.prefixes, where.prefixes, causal)]
    if where.questions.numel():
        parts.append((where.questions, where.keys, where.seen))
    rounded = query.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    found = []
    for queries, keys, mask in parts:
        q, k, v = at(query, queries), at(key, keys), at(value, keys)
        seen = (
            _products(q, k, v, mask, scaling)
            if rounded
            else F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        )
        found.append(seen.transpose(1, 2).flatten(0, 1))
    return torch.cat(found).index_select(0, where.back)[None]


def _products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Return sdpa's results [B, heads, n, head_dim]; `mask` is boolean [B or 1, heads or 1, n, keys]."""
    batch, heads, count, width = query.shape
    queries, keys, values = (each.flatten(0, 1) for each in (query, key, value))
    if mask is None:
        scores = torch.bmm(queries * scaling, keys.transpose(1, 2))
    else:
        hidden = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        hidden = hidden.expand(batch, heads, -1, -1).flatten(0, 1)
        scores = torch.baddbmm(hidden, queries, keys.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(-1), values).view(batch, heads, count, width)


AttentionInterface.register(TRAINING, _attend)
