"""Cached, tree and ragged forwards equal transformers' from-scratch forward, in float64 to 1e-9."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.vlm.cache import KVCache
from speculation.vlm.families import Seen
from speculation.vlm.forward import (
    Chunk,
    PrefillChunk,
    draft_chunk,
    encode_image,
    final_logits,
    forward,
    forward_layers,
    prefill,
    to_numpy,
)
from speculation.vlm.inputs import Inputs, prepare
from speculation.vlm.model import Vlm
from tests.models import check_tree, frame, scratch_logits
from tests.speculation.trees import trees

EXACT = 1e-9
PROMPTS = ("find the silver bottle", "go to the red chair and then look for a ball", "stop")


@pytest.fixture(scope="module")
def steps(target: Vlm) -> list[Inputs]:
    """Three steps of different prompt lengths and image sizes."""
    frames = (frame(0), np.zeros((84, 28, 3), np.uint8) + 200, frame(2, 112))
    return [prepare(target, prompt, image) for prompt, image in zip(PROMPTS, frames, strict=True)]


def path_to(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


@settings(max_examples=15, deadline=None)
@given(batch=st.lists(trees(), min_size=1, max_size=3), order=st.permutations(range(3)), data=st.data())
def test_ragged_tree_batches_are_exact_round_after_round(
    target: Vlm, steps: list[Inputs], batch: list[tuple[list[int], list[int]]], order: list[int], data: st.DataObject
) -> None:
    """Rows in any order, of any length: verify trees, commit a path, keep its survivors, grow them, verify again."""
    cache = KVCache(target, 4, 96)
    rows = [row + data.draw(st.integers(0, 1)) if len(batch) == 1 else row for row in order[: len(batch)]]
    roots = [prefill(target, cache, row, steps[index]) for index, row in enumerate(rows)]
    firsts = [cache.used[row] for row in rows]
    chunks = [draft_chunk(cache, row, root, *tree) for row, root, tree in zip(rows, roots, batch, strict=True)]
    answers = forward(target, cache, chunks)

    later: list[Chunk] = []
    trees: list[tuple[list[int], list[int], list[int]]] = []
    for index, (row, (tokens, parents)) in enumerate(zip(rows, batch, strict=True)):
        check_tree(target, steps[index], (tokens, parents), answers[index])
        end = data.draw(st.integers(-1, len(tokens) - 1))
        path = path_to(parents, end)
        below = [node for node in range(len(tokens)) if end in path_to(parents, node)[:-1]] if end >= 0 else []
        shift = firsts[index] + 1
        new = cache.keep(row, [firsts[index], *(shift + node for node in path)], [shift + node for node in below])
        assert cache.length[row] == firsts[index] + 1 + len(path)
        # The survivors' tree, now behind the path's end, grows by one token behind each of its nodes and the end.
        size = len(below)
        renamed = {node: new[shift + node] - cache.length[row] for node in below}
        grown = [tokens[node] for node in below] + [data.draw(st.integers(0, 300)) for _ in range(size + 1)]
        grown_parents = [renamed.get(parents[node], -1) for node in below] + list(range(-1, size))
        trees.append(([tokens[node] for node in path], grown, grown_parents))
        slots = [cache.length[row] + parent for parent in grown_parents[size:]]
        later.append(Chunk(row, grown[size:], slots))
    for index, logits in enumerate(forward(target, cache, later)):
        committed, grown, grown_parents = trees[index]
        for offset, row_logits in enumerate(logits):
            node = len(grown) - len(logits) + offset
            chain = [grown[each] for each in path_to(grown_parents, node)]
            expected = scratch_logits(target, steps[index], [*committed, *chain])[-1]
            np.testing.assert_allclose(row_logits, expected, rtol=0, atol=EXACT)


def next_chunk(vlm: Vlm, cache: KVCache, row: int, inputs: Inputs, seen: Seen | None, count: int) -> PrefillChunk:
    """Return the next `count` tokens of a prompt."""
    start = cache.length[row]
    images = np.flatnonzero(inputs.ids == vlm.image_token)
    here = (images >= start) & (images < start + count)
    first, last = np.searchsorted(images, (start, start + count))
    part = seen[first:last] if seen is not None and first < last else None
    tokens, positions = inputs.ids[start : start + count], inputs.positions[:, start : start + count]
    return PrefillChunk(row, tokens, positions, images[here] - start, part)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(3)), data=st.data())
def test_a_prompt_in_any_chunks_beside_any_rows_is_as_whole(
    target: Vlm, steps: list[Inputs], order: list[int], data: st.DataObject
) -> None:
    """Rows join one forward with whatever they do next: a chunk of their prompt, or a tree that is then dropped."""
    cache = KVCache(target, 4, 96)
    rows = [row + (row == 2) for row in order]  # with a gap
    for row, inputs in zip(rows, steps, strict=True):
        cache.clear(row, inputs.delta)
    features = [encode_image(target, inputs) for inputs in steps]
    verified = 0
    while verified < 3:
        chunks: list[Chunk | PrefillChunk] = []
        drafts = {}
        for index in data.draw(st.lists(st.sampled_from(range(3)), min_size=1, max_size=3, unique=True)):
            row, inputs = rows[index], steps[index]
            left = len(inputs.ids) - 1 - cache.length[row]
            if left:
                size = data.draw(st.one_of(st.integers(1, left), st.just(left)))
                chunks.append(next_chunk(target, cache, row, inputs, features[index], size))
            else:
                drafts[len(chunks)] = index, *data.draw(trees(most=4))
                chunks.append(draft_chunk(cache, row, int(inputs.ids[-1]), *drafts[len(chunks)][1:]))
        *_, last = forward_layers(target, cache, chunks)
        for place, (index, tokens, parents) in drafts.items():
            logits = to_numpy(final_logits(target, last.hidden[place]))
            check_tree(target, steps[index], (tokens, parents), logits)
            cache.truncate(rows[index], cache.length[rows[index]])
            verified += 1
    assert all(cache.used[row] == cache.length[row] for row in rows)


def test_abandoned_pass_changes_nothing(target: Vlm, steps: list[Inputs]) -> None:
    cache = KVCache(target, 1, 64)
    root = prefill(target, cache, 0, steps[0])
    before = (cache.length[0], cache.used[0])
    running = forward_layers(target, cache, [draft_chunk(cache, 0, root, [7, 8], [-1, 0])])
    assert next(running).layer == 0
    assert next(running).layer == 1
    del running
    assert (cache.length[0], cache.used[0]) == before
    (logits,) = forward(target, cache, [draft_chunk(cache, 0, root, [9], [-1])])
    np.testing.assert_allclose(logits, scratch_logits(target, steps[0], [9]), rtol=0, atol=EXACT)
