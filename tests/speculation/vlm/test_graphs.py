"""Forwards that are padded to few shapes and run by fused layers equal those of transformers' own layers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Logits, draft_chunk, forward, prefill
from speculation.vlm.fused import PLAIN, NotFusable, fuse
from speculation.vlm.graphs import PassGraphs, difference, operations_for
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from tests.models import frame, tiny_model, tiny_text_model
from tests.speculation.trees import trees

EXACT = 1e-9
Tree = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def caches(target: Vlm) -> tuple[KVCache, KVCache, PassGraphs]:
    """Two caches with the same four prompts, and captured forwards over the second."""
    plain, graphed = KVCache(target, 4, 96), KVCache(target, 4, 96)
    for row in range(4):
        for cache in (plain, graphed):
            prefill(target, cache, row, prepare(target, "find the ball " * (row + 1), frame(row)))
    return plain, graphed, PassGraphs(target, graphed, [1])


def run(vlm: Vlm, cache: KVCache, graphs: PassGraphs | None, batch: dict[int, Tree]) -> Logits:
    """Return the logits of trees behind rows, whose scratch is then dropped."""
    logits = forward(vlm, cache, [draft_chunk(cache, row, 7, *tree) for row, tree in batch.items()], graphs=graphs)
    for row, (tokens, _) in batch.items():
        assert cache.used[row] == cache.length[row] + 1 + len(tokens)
        cache.truncate(row, cache.length[row])
    return np.concatenate(logits)


@settings(max_examples=25)
@given(batch=st.dictionaries(st.integers(0, 3), trees(), min_size=1))
def test_padded_forwards_of_trees_equal_those_of_their_own_shape(
    target: Vlm, caches: tuple[KVCache, KVCache, PassGraphs], batch: dict[int, Tree]
) -> None:
    plain, graphed, graphs = caches
    found, expected = run(target, graphed, graphs, batch), run(target, plain, None, batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=EXACT)


class ByRows(TorchDispatchMode):
    """Sums up each number of a product in the same order. A library takes another one for other numbers of rows."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm"):
            return self.product(*args)
        if name == "addmm":
            return args[0] + self.product(*args[1:])
        if name == "addmm_":
            return args[0].add_(self.product(*args[1:]))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left[..., None] * right[..., None, :, :]).cumsum(-2)[..., -1, :]


class Unpadded(PassGraphs):
    """Forwards of their own shape."""

    def pad(self, rows: int, width: int, blocks: int, scratch: int) -> tuple[int, int, int, int]:
        return rows, width, blocks, scratch


@settings(max_examples=25)
@given(batch=st.dictionaries(st.integers(0, 3), trees(), min_size=1))
def test_what_is_padded_changes_no_bit(
    target: Vlm, caches: tuple[KVCache, KVCache, PassGraphs], batch: dict[int, Tree]
) -> None:
    plain, padded, graphs = caches
    with ByRows():
        found = run(target, padded, graphs, batch)
        expected = run(target, plain, Unpadded(target, plain, [1]), batch)
    np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_captured_runs_all_the_same(target: Vlm, caplog: pytest.LogCaptureFixture) -> None:
    """The first shape is tried, and says why; later ones are not."""
    cache = KVCache(target, 1, 64)
    prefill(target, cache, 0, prepare(target, "stop", frame(1)))
    graphs = PassGraphs(target, cache, [1])
    graphs._captures = True  # as on a GPU; here it fails
    for tree in (([], []), ([5, 6], [-1, 0])):
        got, expected = (run(target, cache, each, {0: tree}) for each in (graphs, None))
        np.testing.assert_allclose(got, expected, rtol=0, atol=EXACT)
    assert caplog.text.count("are not captured as CUDA graphs any more, they take longer: ") == 1


def test_own_kernels_are_used_where_they_compute_the_same(target: Vlm) -> None:
    layer = fuse(target)[0]
    assert operations_for(target, layer) is PLAIN, "on a CPU there are none"
    assert difference(target, layer, PLAIN) == 0.0
    assert difference(target, layer, replace(PLAIN, gate=lambda both: both.chunk(2, dim=-1)[0])) > 0.1
    assert np.isnan(difference(target, layer, replace(PLAIN, gate=lambda both: both.chunk(2, dim=-1)[0] / 0.0)))


def test_an_answer_grows_as_without_graphs(target: Vlm) -> None:
    """What is committed was written by a captured forward, and read by the next."""
    answers = []
    for captured in (False, True):
        cache = KVCache(target, 1, 128)
        graphs = PassGraphs(target, cache, []) if captured else None
        token, answer = prefill(target, cache, 0, prepare(target, "find the ball", frame(1))), list[int]()
        for _ in range(20):
            tokens = [5, 6, *range(len(answer) % 3)]
            (logits,) = forward(target, cache, [draft_chunk(cache, 0, token, tokens, range(-1, len(tokens) - 1))],
                                graphs=graphs)  # fmt: skip
            cache.keep(0, [cache.length[0]])
            token = int(logits[0].argmax())
            answer.append(token)
        answers.append(answer)
    assert answers[0] == answers[1]


def test_layers_that_are_not_known_are_refused(tmp_path: Path) -> None:
    biased = load_vlm(tiny_text_model(tmp_path / "biased"), dtype="float32")
    with pytest.raises(NotFusable, match=r"o_proj has a bias"):
        fuse(biased)
    other = load_vlm(tiny_model(tmp_path / "other"), dtype="float32", load_check=False)
    other.text.layers[1].mlp.gate = nn.Linear(2, 2)
    with pytest.raises(NotFusable, match=r"MLP has gate"):
        fuse(other)


@pytest.mark.gpu
def test_captured_forwards_equal_those_that_are_not(tiny_target: Path) -> None:
    vlm = load_vlm(tiny_target, dtype="float32", device="cuda")
    plain, graphed = KVCache(vlm, 2, 96), KVCache(vlm, 2, 96)
    for cache, row in itertools.product((plain, graphed), range(2)):
        prefill(vlm, cache, row, prepare(vlm, "find the ball", frame(row)))
    graphs = PassGraphs(vlm, graphed, [1])
    assert graphs._operations is not PLAIN
    for batch in ([([5, 6, 7], [-1, 0, 0])], [([5], [-1]), ([8, 9, 10], [-1, 0, 1])], [([], []), ([1], [-1])]):
        found = run(vlm, graphed, graphs, dict(enumerate(batch)))
        np.testing.assert_allclose(found, run(vlm, plain, None, dict(enumerate(batch))), rtol=0, atol=1e-3)
    assert graphs._captures, "nothing fell back"
    torch.cuda.synchronize()
