"""transformers' own ways to generate, as peers: greedy, assisted by a draft model, by prompt lookup.

They get what our models get: the ids, pixels and positions' token types of `speculation.vlm.processing.prepare`, on the
same loaded weights. A target's `generation_config` is replaced by plain greedy decoding, which is what "the target
alone" means here; the assistant's is transformers' own default but for what an arm changes on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig as _GenerationConfig

from edge_drafter import DecodingStats
from evaluation.experiment.run import Answer, Question
from speculation.vlm.inputs import Inputs, prepare
from speculation.vlm.load import Vlm

GenerationConfig: Any = _GenerationConfig


def arguments_of(vlm: Vlm, inputs: Inputs) -> dict[str, Tensor]:
    """Return what transformers' `generate` is given for a prepared step.

    Without `mm_token_type_ids` it would take every token for a word and get all positions after the image wrong, with
    no error (M-RoPE, Qwen2-VL, arXiv 2409.12191, Sec. 2.1).
    """
    ids = torch.from_numpy(inputs.ids)[None]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if vlm.sees_images:
        given["mm_token_type_ids"] = (ids == vlm.image_token).int()
    if inputs.pixel_values is not None:
        given["pixel_values"] = torch.from_numpy(inputs.pixel_values)
        given["image_grid_thw"] = torch.tensor([inputs.grid])
    return {name: value.to(vlm.device) for name, value in given.items()}


class Generate:
    """transformers' `generate` of a target; `more` are arguments of it, such as prompt_lookup_num_tokens."""

    def __init__(self, target: Vlm, max_tokens: int, **more: Any) -> None:
        self._target = target
        self._more = more
        self._config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(target.eos),
            pad_token_id=target.eos[0],
        )

    def __call__(self, question: Question) -> Answer:
        """Answer one question. Raises ValueError where transformers refuses, or for a question that cannot be used.

        Every forward of the target that brings tokens is a round; as in a verifier, the prefill is no cloud pass.
        """
        began = time.perf_counter()
        arguments = arguments_of(self._target, prepare(self._target, question.prompt, question.jpeg))
        with forwards_of(self._target) as count:
            output = self._generate(arguments)
        tokens = tuple(output[0, arguments["input_ids"].shape[1] :].tolist())
        stats = DecodingStats(tokens=len(tokens), rounds=count[0], cloud_passes=count[0] - 1)
        stats.total_s = time.perf_counter() - began
        return Answer(tokens, stats)

    def _generate(self, arguments: dict[str, Tensor], **more: Any) -> Tensor:
        # Not passed to generate(): what it leaves open would be filled from the checkpoint's own, penalties included.
        self._target.model.generation_config = self._config
        output: Tensor = self._target.model.generate(**arguments, **self._more, **more)
        return output


class Assisted(Generate):
    """Assisted generation: a draft model proposes, `generate` of the target verifies; both in this process.

    `sight`: the draft model gets the image. In transformers 5 it does not as shipped: the target's encoded image is
    handed to the assistant, whose prefill then drops it as no first iteration, so that it embeds the bare placeholders.
    Answers stay right, acceptance falls. `changes` are values of the assistant's generation config.
    """

    def __init__(self, target: Vlm, draft: Vlm, max_tokens: int, *, sight: bool, **changes: Any) -> None:
        super().__init__(target, max_tokens)
        self._draft = draft
        self._sight = sight
        # One of its own: the schedule of another arm that shares the draft model must not leak in.
        self._assistant = GenerationConfig(eos_token_id=list(target.eos), pad_token_id=target.eos[0], **changes)

    def _generate(self, arguments: dict[str, Tensor], **more: Any) -> Tensor:
        self._draft.model.generation_config = self._assistant
        if not (self._sight and "pixel_values" in arguments):
            return super()._generate(arguments, assistant_model=self._draft.model)
        with sighted(self._draft, arguments["pixel_values"], arguments["image_grid_thw"]):
            return super()._generate(arguments, assistant_model=self._draft.model)


def check_alike(target: Vlm, draft: Vlm, question: Question) -> None:
    """Raise ValueError where the two models would be given other ids or pixels for one question.

    transformers shows both the same ids, so "with sight" is right only for models that prepare frames alike.
    """
    one, other = (arguments_of(vlm, prepare(vlm, question.prompt, question.jpeg)) for vlm in (target, draft))
    for name in one.keys() | other.keys():
        if name not in one or name not in other or not torch.equal(one[name].cpu(), other[name].cpu()):
            raise ValueError(
                f"{target.name} and {draft.name} prepare a question differently ({name}), transformers' assisted "
                "generation gives both the same; take two models of one family with one frame size"
            )


@contextmanager
def forwards_of(vlm: Vlm) -> Iterator[list[int]]:
    """Count the forwards of a model's decoder while the context lasts, in the one entry of the list."""
    count = [0]

    def add(*_: Any) -> None:
        count[0] += 1

    hook = vlm.text.register_forward_pre_hook(add)
    try:
        yield count
    finally:
        hook.remove()


@contextmanager
def sighted(draft: Vlm, pixel_values: Tensor, grid: Tensor) -> Iterator[None]:
    """Let an assistant see: at its prefill it gets the pixels itself, in place of the target's encoded image."""
    model = draft.model
    own = model.prepare_inputs_for_generation

    # `generate` reads the signature: without an argument of exactly this name it refuses all others.
    def with_image(input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = own(input_ids, **kwargs)
        prepared.pop("mm_encoder_outputs", None)
        if prepared["past_key_values"].get_seq_length() == 0:
            prepared |= {"pixel_values": pixel_values, "image_grid_thw": grid}
        return prepared

    model.prepare_inputs_for_generation = with_image
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation
