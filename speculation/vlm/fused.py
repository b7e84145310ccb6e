"""A decoder layer in few operations: queries, keys and values are one matrix product, gate and up are one.

transformers' layer starts some fifty kernels, most of them tiny. Here it is four products with a few operations between
them, which take any device and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from speculation.vlm.blocks import BLOCK
from speculation.vlm.model import Vlm


class NotFusable(ValueError):
    """A decoder has other layers than those that are known here; the message says which part."""


@dataclass(frozen=True)
class FusedLayer:
    """The weights of one decoder layer."""

    norm: Tensor
    qkv: Tensor
    """[(heads + 2 kv_heads) head_dim, hidden]; the layer's own projections are views of it."""
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    """Weights of the norms of each head's queries and keys [head_dim]; None in models without them."""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 intermediate, hidden]; the layer's own gate and up are views of it."""
    down: Tensor
    eps: float
    """What the norms add to the mean square."""


@dataclass(frozen=True)
class Read:
    """What all layers of one forward read besides weights, keys and values; see `TreePlan`, on the device."""

    slots: Tensor
    """Slots of the pool that the tokens' keys and values go to [B width]."""
    blocks: Tensor
    """The rows' tables of blocks [B, n]."""
    unseen: Tensor
    """Which slots of its row each token does not see [B, width, n BLOCK]."""
    cos: Tensor
    """Rotary cosines [B width, head_dim]; `sin` has the same shape."""
    sin: Tensor


def fuse(vlm: Vlm) -> list[FusedLayer]:
    """Return a decoder's layers fused, without a copy that stays. Raises NotFusable where a layer has other parts."""
    config, layers = vlm.text.config, list(vlm.text.layers)
    if getattr(config, "hidden_act", "silu") != "silu":
        raise NotFusable(f"its activation is {config.hidden_act}")
    for layer in layers:
        _check(layer)
    return [_fused(layer, config.rms_norm_eps) for layer in layers]


def run_layer(layer: FusedLayer, hidden: Tensor, kv: tuple[Tensor, Tensor], read: Read) -> Tensor:
    """Return a layer's output [B width, hidden] of its input.

    `kv`: the layer's keys and values in the pool, each [kv_heads, slots, head_dim], to which the tokens' own are
    written.
    """
    qkv = linear(_rms(hidden, layer.norm, layer.eps), layer.qkv, layer.qkv_bias)
    queries = _rotate_and_store(layer, qkv, kv, read)
    hidden = hidden + linear(_attend(queries, kv, read), layer.out)
    gate, up = linear(_rms(hidden, layer.mlp_norm, layer.eps), layer.gate_up).chunk(2, dim=-1)
    return hidden + linear(silu(gate) * up, layer.down)


def run_rows(
    layer: FusedLayer,
    module: Any,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Return what transformers' own layer, `module`, makes of `hidden` [B, width, hidden], which stays as it is.

    `rotary` is what `rotary_of` returns. `attend` is given queries, keys and values of the tokens, each [B, its heads,
    width, head_dim], and returns what the queries attend to [B, width, heads, head_dim].
    """
    own = module.self_attn
    size, kv_heads = own.head_dim, len(own.k_proj.weight) // own.head_dim
    qkv = linear(rms_norm(hidden, layer.norm.shape, layer.norm, layer.eps), layer.qkv, layer.qkv_bias)
    heads = qkv.view(*qkv.shape[:2], -1, size)
    turned, values = heads[:, :, :-kv_heads], heads[:, :, -kv_heads:]
    if layer.head_norms is not None:
        queries, keys = turned[:, :, :-kv_heads], turned[:, :, -kv_heads:]
        turned = torch.cat([rms_norm(each, (size,), norm.weight, layer.eps)
                            for each, norm in ((queries, own.q_norm), (keys, own.k_norm))], dim=2)  # fmt: skip
    cos, sin = rotary
    turned = torch.addcmul(turned * cos, torch.roll(turned, size // 2, -1), sin).transpose(1, 2)
    attended = attend(turned[:, :-kv_heads], turned[:, -kv_heads:], values.transpose(1, 2))
    hidden = linear(attended.flatten(2), layer.out).add_(hidden)
    normed = rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, layer.eps)
    gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
    return linear(silu(gate).mul_(up), layer.down).add_(hidden)


def rotary_of(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotary cosines and sines [B, width, head_dim] as `run_rows` takes them, [B, width, 1, head_dim].

    The sines of the first half get the other sign, so that nothing is negated in a layer.
    """
    half = sin.shape[-1] // 2
    return cos[:, :, None], torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)[:, :, None]


def unseen_slots(lengths: Tensor, tree: Tensor, view: int) -> Tensor:
    """Return which of its row's first `view` slots each token does not see [B, width, view].

    `lengths` [B] and `tree` [B, width, S] are those of `TreePlan`.
    """
    behind = torch.arange(view, device=lengths.device) - lengths[:, None]
    inside = (behind >= 0) & (behind < tree.shape[2])
    own = tree.gather(2, behind.clamp(0, tree.shape[2] - 1)[:, None].expand(-1, tree.shape[1], -1))
    return (behind >= 0)[:, None] & ~(own & inside[:, None])


def _rotate_and_store(layer: FusedLayer, qkv: Tensor, kv: tuple[Tensor, Tensor], read: Read) -> Tensor:
    """Store keys and values of `qkv` [n, (heads + 2 kv_heads) head_dim]; return its queries [n, heads, head_dim]."""
    (keys, values), (kv_heads, _, size) = kv, kv[0].shape
    whole = qkv.view(len(qkv), -1, size)
    queries, fresh, stored = torch.split(whole, [whole.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if layer.head_norms is not None:
        queries, fresh = (_rms(each, weight, layer.eps)
                          for each, weight in zip((queries, fresh), layer.head_norms, strict=True))  # fmt: skip
    keys.index_copy_(1, read.slots, _rotated(fresh, read.cos, read.sin).transpose(0, 1))
    values.index_copy_(1, read.slots, stored.transpose(0, 1))
    return _rotated(queries, read.cos, read.sin)


def _attend(queries: Tensor, kv: tuple[Tensor, Tensor], read: Read) -> Tensor:
    """Return what queries [n, heads, head_dim] attend to [n, heads head_dim].

    Heads that share keys are more queries of the same keys, which are so never copied.
    """
    (rows, width, view), (kv_heads, _, size) = read.unseen.shape, kv[0].shape
    table = read.blocks.flatten()

    def seen(pool: Tensor) -> Tensor:
        return pool.view(kv_heads, -1, BLOCK * size).index_select(1, table).view(kv_heads, rows, view, size)

    keys, values = map(seen, kv)
    asked = queries.view(rows, width, kv_heads, -1, size).permute(2, 0, 3, 1, 4).reshape(kv_heads, rows, -1, size)
    scores = asked @ keys.transpose(2, 3)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * size**-0.5
    scores = scores.view(kv_heads, rows, -1, width, view)
    # Not minus infinity: a padding token may see nothing, and a softmax over nothing is NaN.
    scores = scores.masked_fill(read.unseen[None, :, None], torch.finfo(torch.float32).min)
    shares = scores.softmax(-1).to(queries.dtype).view(kv_heads, rows, -1, view)
    found = (shares @ values).view(kv_heads, rows, -1, width, size)
    attended: Tensor = found.permute(1, 3, 0, 2, 4).reshape(len(queries), -1)
    return attended


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
