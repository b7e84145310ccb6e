"""A loaded model with what belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speculation.language.grammar import Grammars
from speculation.language.prompts import Vocabulary
from speculation.language.thinking import begun, reader
from speculation.logits_processors import RepetitionPenalty
from speculation.vlm.families import Family
from speculation.vlm.folder import model_name
from speculation.vlm.memory import head_width
from speculation.vlm.placement import Span, spans_of
from speculation.vlm.positions import Ints
from speculation.vlm.processing import Processor
from speculation.wire import Thinking


@dataclass(frozen=True)
class Vlm:
    """A loaded model with what belongs to it. It holds no session state, so any number of caches may use it.

    It may be a language model alone: then `sees_images` is False, prompts have no image, and all else is the same.
    """

    family: Family = field(repr=False)
    model: Any = field(repr=False)
    processor: Processor = field(repr=False)
    num_layers: int
    vocabulary: int
    """len(tokenizer), to which logits are cut: checkpoints pad their embedding, each size of a family differently
    (151936 and 152064 for the same 151657 tokens of Qwen2-VL)."""
    eos: tuple[int, ...]
    """Tokens that end an answer."""
    fingerprint: str
    tokenizer_fingerprint: str
    folder: Path
    quantisation: str = "none"
    """What its weights are rounded to, as named by `settings.Quantisation` or a checkpoint's quant_method."""
    thinking: Thinking | None = None
    """How it thinks before it answers; None: it does not."""
    repetition_penalty: float = 1.0
    """What its answers are penalised by, see `speculation.logits_processors`; 1: they are not."""

    @property
    def name(self) -> str:
        """What people call the model: its name on the hub, or its folder's."""
        return model_name(self.folder)

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer."""
        return self.processor.tokenizer

    def read(self, tokens: Sequence[int], constrained: bool = False) -> str:
        """Return the text of an answer's tokens, without those that only mark its end; `constrained`: by a grammar."""
        return begun(self.thinking) + reader(self.tokenizer, constrained)(tokens)

    def words(self, prompt: str) -> Ints:
        """Return the tokens [n] of the chat around a prompt, without an image. Raises ValueError as `encode_text`."""
        return self.processor.encode_text(prompt)

    @property
    def text(self) -> Any:
        """The decoder: embed_tokens, rotary_emb, layers, norm."""
        return attrgetter(self.family.decoder)(self.model)

    @property
    def sees_images(self) -> bool:
        """Whether the model has a vision tower; otherwise it is a language model alone."""
        return self.family.sees_images

    @property
    def image_token(self) -> int:
        """Id of the token that stands for a piece of the image, in a model that sees images."""
        return int(self.model.config.image_token_id)

    @property
    def hidden_size(self) -> int:
        """Width of the decoder's layers."""
        return int(self.text.config.hidden_size)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of a decoder layer."""
        return int(self.text.config.num_key_value_heads)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return head_width(self.text.config.to_dict())

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer that the model was made for."""
        return int(self.text.config.max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model runs in."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the model runs or, of several devices, the one with its embedding and vision tower: inputs go there."""
        device: torch.device = self.text.embed_tokens.weight.device
        return device

    @property
    def head_device(self) -> torch.device:
        """Where the final norm and the head are, and so the logits."""
        device: torch.device = self.text.norm.weight.device
        return device

    def grammars(self) -> Grammars:
        """Return the grammars of its answers. Raises ValueError for a tokenizer that has none, or a bad list of
        objects."""
        return Grammars(self.tokenizer, self.vocabulary, Vocabulary.load(self.folder))

    def penalty(self, prompt: Ints) -> RepetitionPenalty | None:
        """Return what its answers behind a prompt [n], images included, are penalised by; None where they are not."""
        return RepetitionPenalty.of(self.repetition_penalty, prompt, self.vocabulary)

    def rotary(self, embeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary cosines and sines of tokens at positions [3, ...] that have `embeds` [..., hidden]."""
        found: tuple[Tensor, Tensor] = self.text.rotary_emb(
            embeds, positions if self.family.uses_mrope else positions[0]
        )
        return found

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Which layers are on which device, in their order; one span where the model is on one device."""
        return spans_of(self.text.layers)

    @cached_property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices that hold layers, in the order of the layers."""
        return tuple(dict.fromkeys(span.device for span in self.spans))
