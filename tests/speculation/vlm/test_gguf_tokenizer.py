"""A tokenizer out of a GGUF file's metadata is the checkpoint's own, token for token and by its fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.vlm.families.qwen_vl import QwenFrames
from speculation.vlm.folder import ModelFolderError, tokenizer_fingerprint
from speculation.vlm.gguf_tokenizer import PRE_TOKENIZERS, gguf_processor
from speculation.vlm.processing import CHAT_TEMPLATE, Processor
from tests.models import tiny_tokenizer

PROMPT = "find the silver bottle"
TOKENIZER = tiny_tokenizer()


def metadata(**changes: Any) -> dict[str, Any]:
    """Return what a converter writes of the tiny tokenizer, whose model pads its embedding."""
    words, added = TOKENIZER.convert_ids_to_tokens(range(len(TOKENIZER))), TOKENIZER.get_added_vocab()
    merges = json.loads(TOKENIZER.backend_tokenizer.to_str())["model"]["merges"]
    padded = range(len(words), len(words) + 36)
    found = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*words, *(f"[PAD{token}]" for token in padded)],
        "token_type": [*(3 if word in added else 1 for word in words), *[5] * len(padded)],
        "merges": [" ".join(merge) for merge in merges],
        "eos_token_id": TOKENIZER.eos_token_id,
    }
    found = {f"tokenizer.ggml.{name}": value for name, value in (found | changes).items() if value is not None}
    return found | {"tokenizer.chat_template": CHAT_TEMPLATE}


def test_it_is_the_checkpoints_own(tmp_path: Path) -> None:
    processor = gguf_processor(tmp_path / "x.gguf", metadata())
    assert tokenizer_fingerprint(processor.tokenizer) == tokenizer_fingerprint(TOKENIZER)
    assert len(processor.tokenizer) == len(TOKENIZER)
    own = Processor(TOKENIZER, None, CHAT_TEMPLATE)
    assert processor.encode_text(PROMPT).tolist() == own.encode_text(PROMPT).tolist()
    processor, own = (replace(each, frames=QwenFrames.of()) for each in (processor, own))
    for images in ([], [QwenFrames.place], [QwenFrames.place] * 2):
        assert processor.encode_text(PROMPT, images).tolist() == own.encode_text(PROMPT, images).tolist()
    assert processor.image_token == own.image_token
    with pytest.raises(ValueError, match="special token"):
        processor.encode_text("<|im_end|>")


@given(text=st.text(max_size=40))
def test_it_encodes_and_decodes_any_text_alike(text: str) -> None:
    tokenizer = gguf_processor(Path("x.gguf"), metadata()).tokenizer
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokens == TOKENIZER(text, add_special_tokens=False)["input_ids"]
    for skip in (False, True):
        assert tokenizer.decode(tokens, skip_special_tokens=skip) == TOKENIZER.decode(tokens, skip_special_tokens=skip)


def test_files_beside_it_go_first_and_must_be_its_own(tmp_path: Path) -> None:
    Processor(TOKENIZER, None, CHAT_TEMPLATE).save(tmp_path)
    unknown = metadata(pre="made-up")
    processor = gguf_processor(tmp_path / "x.gguf", unknown)
    assert tokenizer_fingerprint(processor.tokenizer) == tokenizer_fingerprint(TOKENIZER)
    Processor(tiny_tokenizer(300), None, CHAT_TEMPLATE).save(tmp_path)
    with pytest.raises(ModelFolderError, match=r"token \d+ is '.*' here and '.*' in .*tokenizer.json; they are of two"):
        gguf_processor(tmp_path / "x.gguf", metadata())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFolderError, match="beside it do not load"):
        gguf_processor(tmp_path / "x.gguf", metadata())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "llama"}, "type 'llama' with pre-tokenizer 'qwen2' is not known .* put the tokenizer files"),
        ({"pre": None}, "pre-tokenizer '' is not known"),
        ({"tokens": [1, 2]}, "has no tokenizer"),
        ({"merges": ["nothing known"]}, "cannot be built"),
        ({"merges": 3}, "cannot be built"),
        ({"eos_token_id": "?"}, "cannot be built"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=sentence):
        gguf_processor(tmp_path / "x.gguf", metadata(**changes))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_known_way_to_cut_gives_texts_back(name: str, tmp_path: Path) -> None:
    tokenizer = gguf_processor(tmp_path / "x.gguf", metadata(pre=name)).tokenizer
    for text in ("Find 1234 bottles, it's  nice\n\n of é日本", " a\tb ", ""):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
