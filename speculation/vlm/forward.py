"""Prefill and the layer-by-layer forward over a ragged batch of token trees: the project's only layer loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module

from speculation.cancellation import Abandoned, Stop
from speculation.vlm.attention import attend
from speculation.vlm.cache import CacheWriter, KVCache
from speculation.vlm.families import Seen
from speculation.vlm.fused import fused_layers, rotary_of, run_modules, run_rows
from speculation.vlm.graphs import PassGraphs
from speculation.vlm.inputs import Inputs
from speculation.vlm.model import Vlm
from speculation.vlm.plan import Fed, Plan
from speculation.vlm.positions import Ints
from speculation.vlm.transfer import Download, upload

Logits = npt.NDArray[np.floating]
NO_PLACES: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Chunk:
    """New tokens of one row; `parents[i]` is the slot that token i follows (see `KVCache`).

    Token i goes to slot `used[row] + i`, so later tokens of the chunk may follow earlier ones.
    """

    row: int
    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(frozen=True)
class PrefillChunk:
    """The next tokens of a row's prompt, or of an answer that is resumed: they lengthen its committed prefix.

    The row holds no scratch. A chunk sees what the row holds and is causal in itself.
    """

    row: int
    tokens: Ints
    """[n]."""
    positions: Ints
    """M-RoPE positions [3, n]."""
    places: Ints
    """[k], which of the tokens stand for parts of the image."""
    seen: Seen | None = None
    """What is fed in their place; None where there are none."""
    draft: Chunk | None = None
    """What is verified behind it in the same pass; only where the chunk is the last of its prefill."""


@dataclass(frozen=True)
class Added:
    """What is added to the output of decoder layer `layer` at some places of a pass: `values` [k, hidden]."""

    layer: int
    places: Tensor
    values: Tensor


@dataclass(frozen=True)
class LayerOutput:
    """What decoder layer `layer` (from 0) made of every chunk: `hidden[b]` [n_b, hidden], before the final norm."""

    layer: int
    hidden: list[Tensor]


def draft_chunk(
    cache: KVCache, row: int, root: int, tokens: Sequence[int], parents: Sequence[int], behind: int = 0
) -> Chunk:
    """Return the chunk that verifies a draft: the unfed `root`, then `tokens`; `parents` are draft nodes, -1 the root.

    Its logits row 0 follows the root and row i + 1 draft node i. It stands `behind` tokens of the prefix that the same
    pass feeds. Raises ValueError if the row holds scratch.
    """
    held = cache.used[row] - cache.length[row]
    if held:
        raise ValueError(f"row {row} holds {held} uncommitted tokens; commit or drop them first")
    first = cache.length[row] + behind
    return Chunk(row, [root, *tokens], [first - 1, *(first + 1 + parent for parent in parents)])


def prefill(vlm: Vlm, cache: KVCache, row: int, inputs: Inputs, stop: Stop | None = None) -> int:
    """Empty the row, feed all prompt tokens but the last as its prefix, and return the last: the root.

    What the cache knows of the prompt's beginning is not fed again. `stop` is called between layers, those of the
    vision tower too. Raises CacheFull
    when the prompt does not fit, Abandoned where `stop` returns True; the row then holds that beginning at most.
    """
    words = words_before_image(vlm, inputs)
    known, count = cache.open(row, words, inputs.delta), len(inputs.ids) - 1
    if known < count:
        fed = slice(known, count)
        places = image_places(vlm, inputs)
        seen = encode_image(vlm, inputs, stop)
        chunk = PrefillChunk(row, inputs.ids[fed], inputs.positions[:, fed], places - known, seen)
        for output in forward_layers(vlm, cache, [chunk]):
            if stop is not None and output.layer < vlm.num_layers - 1 and stop():
                raise Abandoned
    cache.publish(row, words)
    return int(inputs.ids[-1])


def words_before_image(vlm: Vlm, inputs: Inputs) -> list[int]:
    """Return the prompt's tokens before its first image, or all but the last: what rows may share (`KVCache.open`)."""
    images = image_places(vlm, inputs)
    end = images[0] if len(images) else len(inputs.ids) - 1
    return [int(token) for token in inputs.ids[:end]]


def image_places(vlm: Vlm, inputs: Inputs) -> Ints:
    """Return which of the prompt's tokens stand for parts of its images, [k]; none without one."""
    return np.flatnonzero(inputs.ids == vlm.image_token) if inputs.pixel_values is not None else NO_PLACES


@torch.no_grad()
def encode_image(vlm: Vlm, inputs: Inputs, stop: Stop | None = None) -> Seen | None:
    """Return what the vision tower makes of the images; None without one.

    `stop` is called before each of its layers; raises Abandoned where it returns True.
    """
    if inputs.pixel_values is None:
        return None
    pixels = torch.from_numpy(inputs.pixel_values).to(vlm.device)
    with ExitStack() as stack:
        if stop is not None:
            hook = _abandoning(stop)
            for layer in vlm.family.vision_layers(vlm.model):
                stack.callback(layer.register_forward_pre_hook(hook).remove)
        return vlm.family.see(vlm.model, pixels, inputs.grids)


def _abandoning(stop: Stop) -> Callable[[Module, Any], None]:
    """Return a hook that raises Abandoned where `stop` returns True; other threads may use the model meanwhile."""
    thread = threading.get_ident()

    def hook(module: Module, given: Any) -> None:
        if threading.get_ident() == thread and stop():
            raise Abandoned

    return hook


@torch.no_grad()
def forward_layers(
    vlm: Vlm, cache: KVCache, chunks: Sequence[Chunk | PrefillChunk], graphs: PassGraphs | None = None
) -> Iterator[LayerOutput]:
    """Feed the chunks (distinct rows, any lengths) in one pass; yield after each decoder layer.

    A pass that `graphs` takes is run by them, and yields after the layers that they end at alone.

    The tokens count, as scratch or as committed prefix, from the moment the last layer's output is yielded. A pass that
    is abandoned before leaves the cache as it was; the rows of a running pass must not be changed (RuntimeError at its
    end). Raises ValueError for a token outside the vocabulary or a wrong tree, CacheFull where a row has no room.
    """
    prefixes = {chunk.row: chunk.positions for chunk in chunks if isinstance(chunk, PrefillChunk)}
    parents: list[Sequence[int]] = []
    for chunk in chunks:
        prefix = len(chunk.tokens) if isinstance(chunk, PrefillChunk) else 0
        draft = chunk.draft if isinstance(chunk, PrefillChunk) else chunk
        if draft is not None:
            _check_tokens(vlm, draft)
        parents.append([*range(prefix), *(() if draft is None else draft.parents)])
    rows = [chunk.row for chunk in chunks]
    if graphs is not None and not prefixes and graphs.takes([len(chunk.tokens) for chunk in chunks]):
        fed: Fed = (trees := cache.plan_trees(rows, parents, graphs.pad))
        outputs = graphs.layers(trees, [list(chunk.tokens) for chunk in chunks])
    else:
        fed = plan = cache.plan(rows, parents, prefixes)
        outputs = _layers(vlm, cache, plan, chunks)
    for layer, hidden in outputs:
        if layer == vlm.num_layers - 1:
            cache.advance(fed)
        yield LayerOutput(layer, fed.split(hidden))


def forward(
    vlm: Vlm, cache: KVCache, chunks: Sequence[Chunk], stop: Stop | None = None, graphs: PassGraphs | None = None
) -> list[Logits]:
    """Feed the chunks and return the logits after each of their tokens [n_b, vocabulary], float64 or float32.

    `stop` is called between layers; Abandoned, with nothing fed, where it returns True.
    """
    hidden: list[Tensor] = []
    for output in forward_layers(vlm, cache, chunks, graphs):
        hidden = output.hidden
        if stop is not None and output.layer < vlm.num_layers - 1 and stop():
            raise Abandoned
    logits = to_numpy(final_logits(vlm, torch.cat(hidden)))
    return np.split(logits, np.cumsum([len(chunk.tokens) for chunk in chunks])[:-1])


def final_logits(vlm: Vlm, hidden: Tensor) -> Tensor:
    """Return the logits [n, vocabulary] of last-layer outputs [n, hidden]: final norm, head, cut to the tokenizer.

    Gradients pass through to `hidden` (the model is frozen), so that exit adapters can be trained on it.
    """
    logits: Tensor = vlm.model.lm_head(vlm.text.norm(hidden.to(vlm.head_device)))[..., : vlm.vocabulary]
    return logits


def to_numpy(logits: Tensor) -> Logits:
    """Return logits as numpy, float64 where they are, else float32."""
    return downloaded(logits).numpy()


def downloaded(logits: Tensor) -> Download:
    """Return logits on their way to the host, float64 where they are, else float32."""
    return Download(logits if logits.dtype == torch.float64 else logits.float())


def _tokens(chunk: Chunk | PrefillChunk) -> list[int]:
    """Return what a chunk feeds: of a prefill's, with the draft behind it."""
    draft = chunk.draft if isinstance(chunk, PrefillChunk) else None
    return [*chunk.tokens, *(() if draft is None else draft.tokens)]


def _given(vlm: Vlm, plan: Plan, chunks: Sequence[Chunk | PrefillChunk]) -> dict[str, Tensor]:
    """Return what a pass reads besides weights, cache and images: `ids`, `slots`, `blocks`, `positions`, where it needs
    one a `mask`, and of each chunk by its number the places that stand for parts of an image."""
    width = plan.slots.shape[1]
    rows = [_tokens(chunk) for chunk in chunks]
    ids = [list(chain.from_iterable(rows))] if plan.packed else [[*row, *[0] * (width - len(row))] for row in rows]
    parts = {
        "ids": np.array(ids, dtype=np.int64),
        "slots": plan.slots,
        "blocks": plan.blocks,
        "positions": plan.positions,
    }
    start = 0
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, PrefillChunk) and chunk.seen is not None:
            parts[str(number)] = start + chunk.places
        start += len(rows[number])
    return upload(parts if plan.mask is None else parts | {"mask": plan.mask}, vlm.device)


def _embeds(
    vlm: Vlm, given: Mapping[str, Tensor], chunks: Sequence[Chunk | PrefillChunk]
) -> tuple[Tensor, list[Added]]:
    """Return what the first layer is fed, and by layer what is added to its output."""
    embeds: Tensor = vlm.text.embed_tokens(given["ids"])
    added = []
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, PrefillChunk) and chunk.seen is not None:
            places = given[str(number)]
            embeds[0, places] = chunk.seen.features.to(embeds.dtype)
            added += [Added(layer, places, level) for layer, level in enumerate(chunk.seen.added)]
    return embeds, added


def _layers(
    vlm: Vlm, cache: KVCache, plan: Plan, chunks: Sequence[Chunk | PrefillChunk]
) -> Iterator[tuple[int, Tensor]]:
    given = _given(vlm, plan, chunks)
    hidden, added = _embeds(vlm, given, chunks)
    writer = CacheWriter(cache, plan, given["slots"], given["blocks"])
    mask = _bias(given["mask"], hidden.dtype) if "mask" in given else None
    rotary = rotary_of(*vlm.rotary(hidden, given["positions"]))
    fused = fused_layers(vlm)
    for number, span in enumerate(cache.spans):
        # Nothing is copied where it is already, so one device costs nothing.
        writer.enter(number)
        hidden, cos, sin = (each.to(span.device) for each in (hidden, *rotary))
        mask = None if mask is None else mask.to(span.device)
        rotary = cos, sin
        for index in span.layers:
            module = vlm.text.layers[index]
            attend_to_rows = partial(_attend, writer, plan, mask, index, module.self_attn.scaling)
            if fused is None:
                hidden = run_modules(module, hidden, rotary, attend_to_rows)
            else:
                hidden = run_rows(fused[index], module, hidden, rotary, attend_to_rows)
            for each in (each for each in added if each.layer == index):
                hidden[0, each.places.to(hidden.device)] += each.values.to(hidden)
            yield index, hidden


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores by a mask of what is seen: each layer's attention would make it anew."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def _attend(
    writer: CacheWriter, plan: Plan, mask: Tensor | None, index: int, scale: float,
    queries: Tensor, keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """Store what a layer makes of its tokens and return what they attend to; see `fused.run_rows`."""
    return attend(queries, *writer.update(keys, values, index), mask, plan, scale)


def _check_tokens(vlm: Vlm, chunk: Chunk) -> None:
    if len(chunk.tokens) != len(chunk.parents):
        raise ValueError(f"row {chunk.row}: {len(chunk.tokens)} tokens but {len(chunk.parents)} parents")
    for token in chunk.tokens:
        if not 0 <= token < vlm.vocabulary:
            raise ValueError(f"row {chunk.row}: token {token} is outside the vocabulary 0..{vlm.vocabulary - 1}")
