"""A model's layers over several devices: where they are cut, what is refused, and that nothing is on a wrong device."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.engine import cache_blocks
from speculation.vlm import placement
from speculation.vlm.blocks import BLOCK, blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, Logits, draft_chunk, forward, prefill
from speculation.vlm.inputs import prepare
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.placement import cut
from speculation.vlm.settings import ModelSettings
from tests import devices
from tests.models import frame

devices.attach()
ONE, TWO, FOUR = ("lazy:0", "lazy:0,lazy:1", "lazy:0,lazy:1,lazy:2,lazy:3")


# --- where the cut is


@given(
    layers=st.lists(st.integers(1, 50), min_size=1, max_size=7),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    free=st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
def test_no_other_cut_leaves_more_for_keys_and_values(
    layers: list[int], ends: tuple[int, int], free: list[int]
) -> None:
    """Held against every cut there is."""
    if len(free) > len(layers):
        with pytest.raises(ValueError, match=f"{len(free)} devices for {len(layers)} layers"):
            cut(layers, *ends, free)
        return

    def left(counts: list[int]) -> float:
        found, start = [], 0
        for device, count in enumerate(counts):
            held = sum(layers[start : start + count])
            held += ends[0] if device == 0 else 0
            held += ends[1] if device == len(free) - 1 else 0
            found.append((free[device] - held) / count)
            start += count
        return min(found)

    every = [
        [b - a for a, b in zip((0, *places), (*places, len(layers)), strict=True)]
        for places in combinations(range(1, len(layers)), len(free) - 1)
    ]
    counts, room = cut(layers, *ends, free)
    assert counts in every and left(counts) == room == max(map(left, every))


# --- settings


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:0,xpu:1", "mixes cuda and xpu; give several of one kind"),
        ("cpu:0,cpu:1", "the CPU is one device"),
        ("cuda,cuda:1", "each of several devices has its number, as cuda:0,cuda:1 have"),
        ("cuda:1,cuda:0,cuda:1", "names cuda:1 more than once"),
    ],
)
def test_devices_that_cannot_be_together_are_refused_by_name(device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModelSettings(device=device)
    with pytest.raises(StartError, match=f"^--device '{device}'.*{words}"):
        ServerConfig.of(Path("m"), device=device)


def test_more_devices_than_layers_are_refused(tiny_draft: Path) -> None:
    with pytest.raises(ModelFolderError, match="lazy:0,lazy:1,lazy:2 are 3 devices, the model has 2 layers"):
        load_vlm(tiny_draft, device="lazy:0,lazy:1,lazy:2", load_check=False)


def test_weights_that_fit_no_cut_are_refused_with_what_is_free(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"lazy:0": 400_000, "lazy:1": 20_000}
    monkeypatch.setattr(placement, "available_bytes", free.__getitem__)
    with pytest.raises(ModelFolderError, match=r"fit what is free \(lazy:0 0.4 MB, lazy:1 0.0 MB\)"):
        load_vlm(tiny_target, device=TWO, load_check=False)


# --- what is where


def test_every_weight_is_where_the_cut_has_put_it(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"lazy:0": 10**9, "lazy:1": 10**9 // 3}
    monkeypatch.setattr(placement, "available_bytes", free.__getitem__)
    vlm = load_vlm(tiny_target, device=TWO, load_check=False)
    assert [(span.first, span.end, str(span.device)) for span in vlm.spans] == [(0, 3, "lazy:0"), (3, 4, "lazy:1")]
    assert [str(device) for device in vlm.devices] == ["lazy:0", "lazy:1"]
    for index, layer in enumerate(vlm.text.layers):
        assert {str(weight.device) for weight in layer.parameters()} == {f"lazy:{index // 3}"}
    assert {str(weight.device) for weight in vlm.model.model.visual.parameters()} == {"lazy:0"}
    assert str(vlm.device) == "lazy:0"
    assert not any(hasattr(module, "_hf_hook") for module in vlm.model.modules())


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_the_embedding_stays_with_it(folder: Path, tied: bool) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(config))
    if tied:
        weights = load_file(str(folder / "model.safetensors"))
        del weights["lm_head.weight"]
        save_file(weights, str(folder / "model.safetensors"), {"format": "pt"})
    vlm = load_vlm(folder, device=TWO, load_check=False)
    head = vlm.model.lm_head.weight
    assert (head is vlm.text.embed_tokens.weight) == tied
    assert str(head.device) == str(vlm.head_device) == ("lazy:0" if tied else "lazy:1")
    assert walk(vlm)


# --- forwards


def walk(vlm: Vlm) -> list[Logits]:
    """Return the logits of passes of every kind: prompts with and without an image, padded and packed trees, commits
    that move what is kept, and a row that writes behind a beginning that it shares."""
    cache, found = KVCache(vlm, 3, 160), list[Logits]()
    images = [frame(1), frame(2), frame(1)] if vlm.sees_images else [None, None, None]
    prompts = ["find the silver bottle " * 3, "find the red chair", "find the silver bottle " * 3]
    roots = [
        prefill(vlm, cache, row, prepare(vlm, prompt, image))
        for row, (prompt, image) in enumerate(zip(prompts, images, strict=True))
    ]
    trees = [((5, 6, 7), (-1, -1, 0)), ((8, 9, 10), (-1, 0, 0)), ((5, 7, 6), (-1, 0, -1))]
    found += forward(vlm, cache, [draft_chunk(cache, row, roots[row], *trees[row]) for row in range(3)])
    for row, path in enumerate(([0, 2], [0, 1, 3], [0])):
        first = cache.length[row]
        cache.keep(row, [first + place for place in path])
    cache.truncate(2, cache.length[2] - 1)
    chunks = [draft_chunk(cache, 0, 11, [12] * 9, range(-1, 8)), draft_chunk(cache, 2, 3, [], [])]
    found += forward(vlm, cache, chunks)
    first = cache.length[0]
    cache.keep(0, [first], [first + 1, first + 2])
    found += forward(vlm, cache, [Chunk(0, [4], [cache.used[0] - 1])])
    return found


def test_logits_are_bit_for_bit_those_of_one_device(tiny_target: Path) -> None:
    host, alone, spread = (walk(load_vlm(tiny_target, device=each, load_check=False)) for each in ("cpu", ONE, FOUR))
    assert all(map(np.array_equal, spread, alone)) and len(spread) == len(alone)
    # The devices score attention by another formula than the CPU's kernel does.
    for one, other in zip(host, alone, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)


# --- keys and values


def test_keys_and_values_are_with_their_layers_and_the_fullest_device_limits_them(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"lazy:0": 10**9, "lazy:1": 10**9 // 3}
    monkeypatch.setattr(placement, "available_bytes", places.__getitem__)
    vlm = load_vlm(tiny_target, device=TWO, load_check=False)
    cache = KVCache(vlm, 1, 32)
    assert [(part.shape[0], str(part.device)) for part in cache.keys_and_values] == [(3, "lazy:0"), (1, "lazy:1")]
    layer = cache.nbytes // 3 // 4
    assert blocks_for(32) == 32 // BLOCK
    assert KVCache.block_bytes_by_device(vlm) == {torch.device("lazy:0"): 3 * layer, torch.device("lazy:1"): layer}

    def blocks(first: int, second: int, **settings: object) -> int:
        free = {"lazy:0": first * layer, "lazy:1": second * layer}
        monkeypatch.setattr("cloud_verifier.engine.available_bytes", free.__getitem__)
        return cache_blocks(ServerConfig.of(Path("m"), max_sessions=8, capacity=160, **settings).limits, [vlm])

    assert blocks(10**6, 10**6) == 80, "what all sessions can fill"
    assert blocks(150, 10**6) == 150 * 8 // 10 // 3 - 1, "three of four layers are on the first"
    assert blocks(10**6, 25) == 25 * 8 // 10 - 1
    assert blocks(10**6, 10**6, memory=str(4 * 20 * layer)) == 19
    with pytest.raises(StartError, match=r"--capacity 160: .* more than what lazy:1 has free"):
        blocks(10**6, 11)
    with pytest.raises(StartError, match=r"--memory .*: of which its layers take .*, lazy:1 has .* free"):
        blocks(10**6, 15, memory=str(4 * 20 * layer))
