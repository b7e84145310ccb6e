"""A real model folder whose model gives one fixed answer to everything: system tests need known actions, not wisdom."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

from speculation.language.prompts import Vocabulary
from tests.models import CLASSES, COLOURS, tiny_model

TURN_LEFT = "Action: turn left small"
STOP = "Action: stop"
NOT_HERE = "Action: not here"


def parrot(folder: Path, answer: str, layers: int = 2, form: int = 1) -> Path:
    """Write a tiny model into `folder` that answers `answer`, whose tokens must all differ, and return the folder.

    `form`: of the prompts that it is asked in (`speculation.language.prompts.Vocabulary`).

    Attention and feed-forward add nothing to the residual stream, and the head maps each token to its successor.
    """
    tiny_model(folder, layers=layers, hidden=256, seed=3)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = Qwen2VLForConditionalGeneration.from_pretrained(str(folder), dtype=torch.float32)
    chain = [*tokenizer.encode("\n"), *tokenizer.encode(answer), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    if len(set(chain)) != len(chain):
        raise ValueError(f"a token of {answer!r} occurs twice")
    language = model.model.language_model
    with torch.no_grad():
        for layer in language.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        language.norm.weight.fill_(1.0)
        embedding = language.embed_tokens.weight
        embedding.copy_(torch.nn.functional.normalize(torch.randn(embedding.shape, generator=torch.manual_seed(5))))
        model.lm_head.weight.zero_()
        for token, successor in itertools.pairwise(chain):
            model.lm_head.weight[successor] = 10.0 * embedding[token]
    model.to(torch.bfloat16).save_pretrained(str(folder))
    Vocabulary(COLOURS, CLASSES, form).save(folder)
    return folder
