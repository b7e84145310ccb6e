"""Language models without eyes: prompts are words alone, and what the cache cannot serve is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from speculation.vlm.families.text import VICUNA_TEMPLATE
from speculation.vlm.inputs import prepare
from speculation.vlm.load import ModelFolderError, load_vlm
from tests.models import frame, tiny_text_model


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda **how: tiny_text_model(tmp_path_factory.mktemp("text"), **how)


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
