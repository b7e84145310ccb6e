"""Language models without eyes: every family's trees equal transformers' own forward, prompts are words alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from speculation.vlm.cache import KVCache
from speculation.vlm.families.text import VICUNA_TEMPLATE
from speculation.vlm.forward import draft_chunk, forward, prefill
from speculation.vlm.inputs import prepare
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.model import Vlm
from tests.models import TEXT_FAMILIES, frame, scratch_logits, tiny_text_model

EXACT = 1e-9
PROMPTS = ("find the silver bottle", "go to the red chair and then look for a ball")
TREE = ([7, 8, 9, 10], [-1, -1, 0, 2])


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda **how: tiny_text_model(tmp_path_factory.mktemp("text"), **how)


def expect_exact(vlm: Vlm) -> None:
    """Verify a tree in each of two rows at once and compare every node with a from-scratch forward."""
    cache = KVCache(vlm, 2, 96)
    steps = [prepare(vlm, prompt, None) for prompt in PROMPTS]
    roots = [prefill(vlm, cache, row, inputs) for row, inputs in enumerate(steps)]
    tokens, parents = TREE
    answers = forward(vlm, cache, [draft_chunk(cache, row, root, tokens, parents) for row, root in enumerate(roots)])
    for inputs, logits in zip(steps, answers, strict=True):
        for node, chain in enumerate([[], [7], [8], [7, 9], [7, 9, 10]]):
            expected = scratch_logits(vlm, inputs, chain)[-1]
            np.testing.assert_allclose(logits[node], expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_family_is_exact(build: Callable[..., Path], family: str) -> None:
    vlm = load_vlm(build(family=family), dtype="float64")
    assert not vlm.sees_images
    expect_exact(vlm)


def test_a_model_with_eyes_may_be_asked_without_an_image(target: Vlm) -> None:
    expect_exact(target)


def test_a_language_model_refuses_an_image(build: Callable[..., Path]) -> None:
    vlm = load_vlm(build())
    with pytest.raises(ValueError, match="sees no images; give it none"):
        prepare(vlm, "go", frame(0))
    with pytest.raises(ValueError, match="sees no images; give it none"):
        prepare(vlm, "go", b"any bytes")


def test_vicuna_s_conversation_stands_in_for_a_missing_template(
    build: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    vlm = load_vlm(build(template=""))
    assert vlm.processor.template == VICUNA_TEMPLATE
    assert "has no chat template; Vicuna's conversation is used" in caplog.text
    text = vlm.tokenizer.decode(prepare(vlm, "say hi", None).ids)
    assert text.startswith("A chat between a curious user")
    assert text.endswith("questions. USER: say hi ASSISTANT:")
    with pytest.raises(ModelFolderError, match="no chat_template.jinja"):
        load_vlm(build(family="qwen2", template=""))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"family": "mistral", "sliding_window": 64}, r"sliding-window attention \(64 tokens\) is not supported"),
        ({"family": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "sliding-window attention"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rotary embeddings of type 'dynamic'",
        ),
    ],
)
def test_attention_that_the_cache_cannot_serve_is_refused(
    build: Callable[..., Path], changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ModelFolderError, match=sentence):
        load_vlm(build(**changes))
