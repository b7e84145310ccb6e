"""Settings of a measurement of exits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from adapters_training.devices import ModelConfig


class MeasureConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured, and how the models are loaded (the draft model is never quantised)."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name)")]
    draft: Annotated[str, Meta(min_length=1, description="model folder of the draft, with the same tokenizer")]
    exits: Annotated[str, Meta(min_length=1, description="folder of trained exits; the results go there")]
    held_out: Annotated[tuple[str, ...], Meta(min_length=1, description="files and folders not trained on")]
    images: Annotated[str, Meta(description="folder that image paths are relative to; none: their file's")] = ""
    prompts: Annotated[int, Meta(ge=1, description="prompts to measure")] = 200
    list_prompts: Annotated[int, Meta(ge=1, description="further prompts, whose answers make the short list")] = 100
    coverage: Annotated[
        float, Meta(ge=0.0, le=1.0, description="share of the target's tokens in the short list; 0: no short list")
    ] = 0.99
    gamma: Annotated[int, Meta(ge=1, le=64, description="tokens a draft")] = 4
    max_tokens: Annotated[int, Meta(ge=1, description="tokens an answer")] = 96
    capacity: Annotated[int, Meta(ge=16, description="cache slots: image, prompt, answer and drafts must fit")] = 1024
    repeats: Annotated[int, Meta(ge=1, description="forwards that are timed")] = 50
    seed: Annotated[int, Meta(ge=0, description="which records and wordings")] = 0
