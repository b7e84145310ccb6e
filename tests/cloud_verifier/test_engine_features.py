"""Features of a forward: those of the tokens that it commits, whatever else it feeds; none where nobody asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cloud_verifier.engine import VlmEngine
from cloud_verifier.interfaces import LayerVerdicts, Row, RowFeatures
from speculation.features import unpack
from speculation.fed.encoder import FeatureEncoder
from speculation.vlm.blocks import BLOCK
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import PrefillChunk, encode_image, forward_layers, image_places
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import ROOT
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, greedy, jpeg
from tests.models import tiny_text_model
from tests.speculation.fed.heads import random_encoder, tiny_config

LAYERS = (0, 2, 3)


@pytest.fixture(scope="module")
def encoder(target: Vlm) -> FeatureEncoder:
    config = tiny_config(target=target.fingerprint, hidden=target.hidden_size, layers=LAYERS, features="f" * 16)
    return random_encoder(config)


@pytest.fixture(scope="module")
def truth(target: Vlm) -> list[int]:
    return greedy(target, PROMPTS[0], jpeg(0), 8)


def slowly(vlm: Vlm, encoder: FeatureEncoder, answer: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the features of prompt and answer, one forward over all of it."""
    inputs = prepare(vlm, PROMPTS[0], jpeg(0))
    ids = np.concatenate([inputs.ids, np.array(answer, dtype=np.int64)])
    behind = np.tile(np.arange(len(inputs.ids), len(ids)) + inputs.delta, (3, 1))
    positions = np.concatenate([inputs.positions, behind], axis=1)
    cache, found = KVCache(vlm, 1, CAPACITY), []
    cache.clear(0, inputs.delta)
    chunk = PrefillChunk(0, ids, positions, image_places(vlm, inputs), encode_image(vlm, inputs))
    for output in forward_layers(vlm, cache, [chunk]):
        if output.layer in LAYERS:
            found.append(output.hidden[0])
    return encoder.numbers(found)


def same(found: RowFeatures, features: npt.NDArray[np.float32]) -> None:
    """Kernels round by the size of a forward, so a number may be one level off."""
    numbers = unpack(found.packed, features.shape[1])
    assert numbers.shape == features.shape
    assert (np.abs(numbers - features) <= 0.51 * np.abs(features).max(axis=1, keepdims=True) / 127 + 1e-5).all()


def last(engine: VlmEngine, rows: Sequence[Row]) -> LayerVerdicts:
    *_, output = engine.verify(rows)
    return output


@pytest.mark.parametrize("chunk", [7, 1000])
def test_features_of_the_prompts_end_and_of_every_committed_token(
    chunk: int, target: Vlm, encoder: FeatureEncoder, truth: list[int]
) -> None:
    """A prompt in chunks, resumed with one token; then a tree whose right branch is the second, then a lone decode."""
    engine = VlmEngine(target, 2, CAPACITY, max_draft=16, encoder=encoder)
    inputs = engine.prepare(PROMPTS[0], jpeg(0))
    left = engine.begin(0, inputs, truth[:1], 20)
    engine.encode(0)
    all_ids = [*inputs.ids.tolist(), *truth]
    expected = slowly(target, encoder, truth)
    prompt, fed = len(inputs.ids), 0
    while left:
        count = min(chunk, left)
        found = last(engine, [Row(0, chunk=count, features=min(3, count))]).features[0]
        fed, left = fed + count, left - count
        assert list(found.tokens) == all_ids[fed + 1 - min(3, count) : fed + 1]
        same(found, expected[fed - min(3, count) : fed])
    assert fed == prompt
    junk = truth[1] ^ 1
    row = Row(0, (junk, truth[1], 5, truth[2]), (ROOT, ROOT, 0, 1), features=1)
    beside = engine.prepare(PROMPTS[1], jpeg(1))
    tokens = engine.begin(1, beside, [], 20)
    engine.encode(1)
    output = last(engine, [Row(1, chunk=tokens), row])
    assert set(output.features) == {0}, "only those that ask"
    assert output.verdicts[0].path == (1, 3) and output.features[0].tokens == tuple(truth[1:4])
    same(output.features[0], expected[prompt : prompt + 3])
    engine.keep(0, output.verdicts[0].path, output.verdicts[0].token)
    output = last(engine, [Row(0, features=1)])
    assert output.features[0].tokens == (truth[4],)
    same(output.features[0], expected[prompt + 3 : prompt + 4])


def test_the_end_of_a_prompt_is_fed_where_its_beginning_is_shared(tmp_path: Path) -> None:
    """Robots ask a language model the same: who asks for features of the prompt's end gets them, and who asks for none
    shares all of it."""
    vlm = load_vlm(tiny_text_model(tmp_path), dtype="float64")
    most = 5
    shape = tiny_config(target=vlm.fingerprint, hidden=vlm.hidden_size, prompt_tokens=most)
    engine = VlmEngine(vlm, 3, 2 * CAPACITY, encoder=random_encoder(shape))
    inputs = engine.prepare("find the silver bottle in this room " * 6, b"")
    found, fed = [], []
    for row in range(2):
        fed.append(engine.begin(row, inputs, [], 20, most))
        engine.encode(row)
        output = last(engine, [Row(row, chunk=fed[-1], features=min(most, fed[-1]))])
        found.append(output.features[row])
        last(engine, [Row(row)])
    assert fed[0] == len(inputs.ids) - 1 and most <= fed[1] < most + BLOCK
    assert found[0].tokens == found[1].tokens == tuple(inputs.ids[-most:].tolist())
    same(found[1], unpack(found[0].packed, shape.size))
    assert engine.begin(2, inputs, [], 20) == (len(inputs.ids) - 1) % BLOCK < fed[1]


@pytest.mark.parametrize(
    ("weight", "complaint"),
    [
        (torch.full((12, 192), torch.nan), "a row gets no features: features have numbers beyond"),
        (torch.zeros(12, 1), "no row gets features: "),
    ],
)
def test_features_that_cannot_be_made_cost_only_themselves(
    target: Vlm, encoder: FeatureEncoder, truth: list[int], caplog: pytest.LogCaptureFixture,
    weight: torch.Tensor, complaint: str,
) -> None:  # fmt: skip
    broken = random_encoder(encoder.config)
    broken.down.weight = torch.nn.Parameter(weight, requires_grad=False)
    engine = VlmEngine(target, 1, CAPACITY, encoder=broken)
    tokens = engine.begin(0, engine.prepare(PROMPTS[0], jpeg(0)), [], 20)
    engine.encode(0)
    last(engine, [Row(0, chunk=tokens)])
    output = last(engine, [Row(0, tuple(truth[:2]), (ROOT, 0), features=1)])
    assert not output.features and output.verdicts[0].token == truth[2]
    assert complaint in caplog.text
