"""A decoder layer in few operations: queries, keys and values are one matrix product, gate and up are one.

transformers' layer starts some fifty kernels, most of them tiny. Here it is four products with a few operations between
them, which take any device and dtype. Attention is two products with a softmax between them, not torch's kernel of one
piece: that one walks along the keys, which for a few queries leaves a GPU idle (an H100 took 41 us a layer by it, and
4 us for the second of the products: `benchmarks/results/gpu/passes.json`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

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
    head_norms: Tensor | None
    """Weights of the norms of each head's queries and keys [heads + kv_heads, head_dim]; None in models without."""
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
    lengths: Tensor
    """Slots of the rows' prefixes [B]."""
    tree: Tensor
    """Which of the S slots behind its row's prefix each token sees [B, width, S]."""
    cos: Tensor
    """Rotary cosines [B width, 1, head_dim]."""
    sin: Tensor
    """Rotary sines of the same shape, those of the first half of a head with the other sign."""
    bias: Tensor
    """What is added to the scores of a row's slots [B, width, n BLOCK]: 0, or so little that nothing is seen. Of no
    slots where the operations read none."""

    @classmethod
    def of(cls, given: Mapping[str, Tensor], rotary: tuple[Tensor, Tensor], biased: bool = True) -> Read:
        """Return what follows from the parts of a `TreePlan` on the device, and from its tokens' cosines and sines."""
        lengths, tree, blocks = given["lengths"], given["tree"], given["blocks"]
        cos, sin = (each.flatten(0, 1) for each in rotary_of(*rotary))
        wide = torch.promote_types(cos.dtype, torch.float32)
        unseen = unseen_slots(lengths, tree, blocks.shape[1] * BLOCK if biased else 0)
        # Not minus infinity: a padding token may see nothing, and a softmax over nothing is NaN.
        bias = torch.zeros_like(unseen, dtype=wide).masked_fill_(unseen, torch.finfo(wide).min)
        return cls(given["slots"].flatten(), blocks, lengths, tree, cos, sin, bias)


@dataclass(frozen=True)
class Operations:
    """What a layer computes between its products: by torch's own operations, `PLAIN`, or by `speculation.vlm.kernels`.

    `kv` are a layer's keys and values in the pool [2, kv_heads, slots, head_dim].
    """

    rotate_and_store: Callable[[FusedLayer, Tensor, Tensor, Read], Tensor]
    """Stores keys and values of a layer, its `qkv` [n, (heads + 2 kv_heads) head_dim], `kv` and what it reads; returns
    its queries [n, heads, head_dim]. `qkv` may be overwritten."""
    attend: Callable[[Tensor, Tensor, Read], Tensor]
    """Returns what queries, of `kv`, attend to [n, heads head_dim]."""
    gate: Callable[[Tensor], Tensor]
    """Returns silu(gate) up [n, intermediate] of both, side by side [n, 2 intermediate], which may be overwritten."""
    reads_bias: bool
    """Whether attention goes by `Read.bias`; else by lengths and tree."""


_known: WeakKeyDictionary[nn.Module, list[FusedLayer]] = WeakKeyDictionary()
"""Decoders that were fused before."""
not_fusable: WeakSet[nn.Module] = WeakSet()
"""Decoders that have other parts."""


def fuse(vlm: Vlm) -> list[FusedLayer]:
    """Return a decoder's layers fused, without a copy that stays. Raises NotFusable where a layer has other parts."""
    known = _known.get(vlm.text)
    if known is not None:
        return known
    config, layers = vlm.text.config, list(vlm.text.layers)
    if getattr(config, "hidden_act", "silu") != "silu":
        raise NotFusable(f"its activation is {config.hidden_act}")
    for layer in layers:
        _check(layer)
    _known[vlm.text] = [_fused(layer, config.rms_norm_eps) for layer in layers]
    return _known[vlm.text]


def fused_layers(vlm: Vlm) -> list[FusedLayer] | None:
    """Return a decoder's layers fused; None where it has other parts, is on several devices or was moved since."""
    if vlm.text in not_fusable or len(vlm.devices) > 1 or vlm.device.type not in ("cpu", "cuda"):
        return None
    try:
        layers = fuse(vlm)
    except NotFusable:
        not_fusable.add(vlm.text)
        return None
    joined = layers[0].qkv
    return layers if (joined.dtype, joined.device) == (vlm.dtype, vlm.device) else None


def run_layer(layer: FusedLayer, hidden: Tensor, kv: Tensor, read: Read, operations: Operations) -> Tensor:
    """Return a layer's output [B width, hidden]; it is written where the input was.

    `kv`: the layer's keys and values in the pool [2, kv_heads, slots, head_dim], to which the tokens' own are written.
    """
    qkv = linear(rms_norm(hidden, layer.norm.shape, layer.norm, layer.eps), layer.qkv, layer.qkv_bias)
    queries = operations.rotate_and_store(layer, qkv, kv, read)
    hidden.addmm_(operations.attend(queries, kv, read), layer.out.t())
    normed = rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, layer.eps)
    return hidden.addmm_(operations.gate(linear(normed, layer.gate_up)), layer.down.t())


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
        turned = rms_norm(turned, (size,), eps=layer.eps) * layer.head_norms
    turned = _turned(turned, rotary)
    attended = attend(turned[:, :-kv_heads], turned[:, -kv_heads:], values.transpose(1, 2))
    hidden = linear(attended.flatten(2), layer.out).add_(hidden)
    normed = rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, layer.eps)
    gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
    return linear(silu(gate).mul_(up), layer.down).add_(hidden)


def run_modules(
    module: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Return what `run_rows` does of a layer whose projections are not joined, by its own modules.

    Parts that no known family has are not computed: the load check refuses a model with them.
    """
    own, normed = module.self_attn, module.input_layernorm(hidden)
    queries, keys, values = (
        project(normed).unflatten(-1, (-1, own.head_dim)) for project in (own.q_proj, own.k_proj, own.v_proj)
    )
    if hasattr(own, "q_norm"):
        queries, keys = own.q_norm(queries), own.k_norm(keys)
    attended = attend(_turned(queries, rotary), _turned(keys, rotary), values.transpose(1, 2))
    hidden = hidden + own.o_proj(attended.flatten(2))
    made: Tensor = hidden + module.mlp(module.post_attention_layernorm(hidden))
    return made


def _turned(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Return heads [B, width, heads, head_dim] turned to their positions [B, heads, width, head_dim]."""
    cos, sin = rotary
    return torch.addcmul(heads * cos, torch.roll(heads, heads.shape[-1] // 2, -1), sin).transpose(1, 2)


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


def _rotate_and_store(layer: FusedLayer, qkv: Tensor, kv: Tensor, read: Read) -> Tensor:
    kv_heads, size = kv.shape[1], kv.shape[3]
    whole = qkv.view(len(qkv), -1, size)
    heads = whole.shape[1] - 2 * kv_heads
    turned, half = whole[:, : heads + kv_heads], size // 2
    if layer.head_norms is not None:
        torch.mul(rms_norm(turned, (size,), eps=layer.eps), layer.head_norms, out=turned)
    swapped = torch.cat((turned[..., half:], turned[..., :half]), dim=-1)
    turned.mul_(read.cos).addcmul_(swapped, read.sin)
    kv.view(2 * kv_heads, -1, size).index_copy_(1, read.slots, whole[:, heads:].transpose(0, 1))
    return whole[:, :heads]


def _attend(queries: Tensor, kv: Tensor, read: Read) -> Tensor:
    # Heads that share keys are more queries of the same keys, which are so never copied.
    (rows, width, view), (_, kv_heads, _, size) = read.bias.shape, kv.shape
    seen = kv.view(2 * kv_heads, -1, BLOCK * size).index_select(1, read.blocks.flatten())
    keys, values = seen.view(2, kv_heads * rows, view, size)
    asked = queries.view(rows, width, kv_heads, -1, size).permute(2, 0, 3, 1, 4).reshape(len(keys), -1, size)
    scores = torch.bmm(asked, keys.transpose(1, 2)).view(kv_heads, rows, -1, width, view)
    scores = torch.add(read.bias[None, :, None], scores, alpha=size**-0.5)
    shares = scores.softmax(-1).to(queries.dtype).view(len(keys), -1, view)
    found = torch.bmm(shares, values).view(kv_heads, rows, -1, width, size)
    return found.permute(1, 3, 0, 2, 4).reshape(len(queries), -1)


def _gate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


PLAIN = Operations(_rotate_and_store, _attend, _gate, reads_bias=True)


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
        head_norms=_head_norms(attend) if hasattr(attend, "q_norm") else None,
        out=attend.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=_joined([mlp.gate_proj, mlp.up_proj], "weight"),
        down=mlp.down_proj.weight,
        eps=eps,
    )


def _head_norms(attend: Any) -> Tensor:
    norms = ((attend.q_proj, attend.q_norm), (attend.k_proj, attend.k_norm))
    return torch.cat([norm.weight.expand(len(proj.weight) // len(norm.weight), -1) for proj, norm in norms])


def _joined(modules: Sequence[nn.Module], name: str) -> Tensor:
    """Return the modules' parameters one below the other; each becomes a view of its part, so nothing is held twice."""
    own = [getattr(module, name).detach() for module in modules]
    whole = torch.cat(own)
    for module, part in zip(modules, torch.split(whole, [len(each) for each in own]), strict=True):
        getattr(module, name).data = part
    return whole
