"""A decoder layer in few operations: queries, keys and values are one matrix product, gate and up are one.

transformers' layer starts some fifty kernels, most of them tiny. Here it is four products and the `Operations` between
them, in torch below, which any device and dtype has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from speculation.vlm.blocks import BLOCK
from speculation.vlm.load import Vlm


class NotFusable(ValueError):
    """A decoder has other layers than those that are known here; the message says which part."""


class Operations(Protocol):
    """What lies between a layer's matrix products; the functions below say what each returns."""

    def rms_norm(
        self, hidden: Tensor, weight: Tensor, eps: float, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def silu_times(self, gate_up: Tensor) -> Tensor: ...

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor,
        norms: tuple[Tensor, Tensor] | None, eps: float,
    ) -> Tensor: ...  # fmt: skip

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor, tree: Tensor
    ) -> Tensor: ...


@dataclass(frozen=True)
class FusedLayer:
    """The weights of one decoder layer."""

    norm: Tensor
    qkv: Tensor
    """[(heads + 2 kv_heads) head_dim, hidden]; the layer's own projections are views of it."""
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    """Of each head's queries and keys [head_dim], where a model has them."""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 intermediate, hidden], likewise."""
    down: Tensor
    eps: float
    """Of the norms."""


@dataclass(frozen=True)
class Read:
    """What the layers of one forward read besides weights, keys and values; see `TreePlan`, on the device."""

    slots: Tensor
    """[B width]."""
    blocks: Tensor
    lengths: Tensor
    tree: Tensor
    cos: Tensor
    """[B width, head_dim], as `sin`."""
    sin: Tensor


def fuse(vlm: Vlm) -> list[FusedLayer]:
    """Return a decoder's layers fused, without a copy that stays. Raises NotFusable where a layer has other parts."""
    config, layers = vlm.text.config, list(vlm.text.layers)
    if getattr(config, "hidden_act", "silu") != "silu":
        raise NotFusable(f"its activation is {config.hidden_act}")
    for layer in layers:
        _check(layer)
    return [_fused(layer, config.rms_norm_eps) for layer in layers]


def run_layer(
    operations: Operations, layer: FusedLayer, hidden: Tensor, added: Tensor | None, kv: tuple[Tensor, Tensor],
    read: Read,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run a layer on `hidden` + `added` [n, hidden]; return two tensors whose sum is its output.

    The sum is left to the next norm, which reads both in any case. `kv`: the layer's keys and values in the pool,
    [kv_heads, slots, head_dim], which the tokens' own are written to.
    """
    keys, values = kv
    normed, hidden = operations.rms_norm(hidden, layer.norm, layer.eps, added)
    qkv = linear(normed, layer.qkv, layer.qkv_bias)
    queries = operations.rotate_and_store(
        qkv, read.cos, read.sin, read.slots, keys, values, layer.head_norms, layer.eps
    )
    rows = len(read.blocks)
    queries = queries.view(rows, -1, *queries.shape[1:])
    attended = operations.attend(queries, keys, values, read.blocks, read.lengths, read.tree)
    attended = linear(attended.reshape(len(hidden), -1), layer.out)
    normed, hidden = operations.rms_norm(hidden, layer.mlp_norm, layer.eps, attended)
    return hidden, linear(operations.silu_times(linear(normed, layer.gate_up)), layer.down)


class TorchOperations:
    """The operations in torch's own, in any dtype and on any device."""

    def rms_norm(
        self, hidden: Tensor, weight: Tensor, eps: float, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of `hidden` + `added` [n, width], and that sum."""
        total = hidden if added is None else hidden + added
        return _rms(total, weight, eps), total

    def silu_times(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up [n, width] of [n, 2 width]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor,
        norms: tuple[Tensor, Tensor] | None, eps: float,
    ) -> Tensor:  # fmt: skip
        """Rotate queries and keys of `qkv` [n, (heads + 2 kv_heads) head_dim], store keys and values in the pool's
        `slots` [n], and return the queries [n, heads, head_dim].

        cos, sin: [n, head_dim]; keys, values: [kv_heads, slots, head_dim].
        """
        kv_heads, _, size = keys.shape
        whole = qkv.view(len(qkv), -1, size)
        queries, fresh, stored = torch.split(whole, [whole.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        if norms is not None:
            queries, fresh = _rms(queries, norms[0], eps), _rms(fresh, norms[1], eps)
        keys.index_copy_(1, slots, _rotated(fresh, cos, sin).transpose(0, 1))
        values.index_copy_(1, slots, stored.transpose(0, 1))
        return _rotated(queries, cos, sin)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor, tree: Tensor
    ) -> Tensor:
        """Return what queries [B, width, heads, head_dim] attend to, in the same shape.

        keys, values: [kv_heads, slots, head_dim]; blocks, lengths, tree: as of `TreePlan`. Heads that share keys are
        more queries of the same keys, which are so never copied.
        """
        (rows, width, heads, size), kv_heads = queries.shape, len(keys)
        table = blocks.flatten()

        def seen(pool: Tensor) -> Tensor:
            whole = pool.view(kv_heads, -1, BLOCK * size).index_select(1, table)
            return whole.view(kv_heads, rows, -1, size)

        asked = queries.view(rows, width, kv_heads, heads // kv_heads, size).permute(2, 0, 3, 1, 4)
        asked = asked.reshape(kv_heads, rows, -1, size)
        scores = asked @ seen(keys).transpose(2, 3)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * size**-0.5
        hidden = ~_visible(lengths, tree, scores.shape[3])
        scores = scores.view(kv_heads, rows, -1, width, scores.shape[3])
        scores = scores.masked_fill(hidden[None, :, None], torch.finfo(torch.float32).min)
        shares = scores.softmax(-1).to(queries.dtype).view(kv_heads, rows, -1, scores.shape[4])
        found = (shares @ seen(values)).view(kv_heads, rows, -1, width, size)
        attended: Tensor = found.permute(1, 3, 0, 2, 4).reshape(queries.shape)
        return attended


def _visible(lengths: Tensor, tree: Tensor, view: int) -> Tensor:
    """Return which of the first `view` slots each token sees [B, width, view]; see `TreePlan`."""
    behind = torch.arange(view, device=lengths.device) - lengths[:, None]
    inside = (behind >= 0) & (behind < tree.shape[2])
    own = tree.gather(2, behind.clamp(0, tree.shape[2] - 1)[:, None].expand(-1, tree.shape[1], -1))
    return (behind < 0)[:, None] | (own & inside[:, None])


def _rms(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(hidden.dtype)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cos[:, None] + turned * sin[:, None]


_PARTS = {
    "": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "self_attn": {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "rotary_emb"},
    "mlp": {"gate_proj", "up_proj", "down_proj", "act_fn"},
}


def _check(layer: nn.Module) -> None:
    for name, known in _PARTS.items():
        part = layer.get_submodule(name)
        for child, module in part.named_children():
            if child not in known:
                raise NotFusable(f"{type(part).__name__} has {child}")
            if child.endswith("_proj") and (
                type(module) is not nn.Linear or hasattr(module.weight, "__tensor_flatten__")
            ):
                raise NotFusable(f"{child} is {type(module).__name__}, not a plain linear layer")
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        if layer.get_submodule(name).bias is not None:
            raise NotFusable(f"{name} has a bias")


def _fused(layer: Any, eps: float) -> FusedLayer:
    attend, mlp = layer.self_attn, layer.mlp
    projections = [attend.q_proj, attend.k_proj, attend.v_proj]
    return FusedLayer(
        norm=layer.input_layernorm.weight,
        qkv=_joined(projections, "weight"),
        qkv_bias=_joined(projections, "bias") if attend.q_proj.bias is not None else None,
        head_norms=(attend.q_norm.weight, attend.k_norm.weight) if hasattr(attend, "q_norm") else None,
        out=attend.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=_joined([mlp.gate_proj, mlp.up_proj], "weight"),
        down=mlp.down_proj.weight,
        eps=eps,
    )


def _joined(modules: Sequence[nn.Module], name: str) -> Tensor:
    """Return the modules' parameters one below the other; each becomes a view of its part, so nothing is held twice."""
    own = [getattr(module, name).detach() for module in modules]
    first, ends = own[0], [0]
    for each in own:
        ends.append(ends[-1] + each.numel())
    places = [(each.untyped_storage().data_ptr(), each.storage_offset() - first.storage_offset()) for each in own]
    if places == [(first.untyped_storage().data_ptr(), end) for end in ends[:-1]]:  # they were joined before
        joined: Tensor = first.as_strided((sum(map(len, own)), *first.shape[1:]), first.stride())
        return joined
    whole = torch.cat(own)
    for module, part in zip(modules, torch.split(whole, [len(each) for each in own]), strict=True):
        getattr(module, name).data = part
    return whole
