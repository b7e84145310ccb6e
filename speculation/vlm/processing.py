"""Prompt -> tokens, offline; the tokenizer and processor files of a model folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer

from speculation.language.prompts import chat, is_conversation
from speculation.language.thinking import CLOSES, OPENS, thinking_of
from speculation.text import first_line
from speculation.vlm.families import Family, FrameProcessor, family_of
from speculation.vlm.families.qwen_vl import QwenFrames, QwenVL
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.positions import Ints
from speculation.wire import Thinking

PATCH = 14
MERGE = 2
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    QwenFrames.place,
    "<|video_pad|>",
)
"""Qwen2-VL's special tokens, in its order; a tokenizer of our own appends them to its byte-level BPE vocabulary."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2-VL's chat without its system prompt, for models of our own: ten tokens less a step."""


@dataclass(frozen=True)
class Processor:
    """Tokenizer, chat template and preparation of frames (None for a language model alone) of a model folder."""

    tokenizer: Any
    frames: FrameProcessor | None
    template: str

    @classmethod
    def load(
        cls, folder: Path, family: Family | None = None, config: dict[str, Any] | None = None, template: str = ""
    ) -> Processor:
        """Read the tokenizer and processor files of a folder whose config.json is `config`.

        Without a family it is Qwen2-VL, as our own models are. `template` is used where the folder has no chat template
        and the family neither. Raises OSError, ValueError or KeyError for files that do
        not load.
        """
        family = family or QwenVL()
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        if len(tokenizer) <= len(tokenizer.get_added_vocab()):  # what transformers makes of a folder without its files
            raise ValueError("no tokenizer.json, vocab.json or tokenizer.model with words in it")
        frames = family.frames(folder, config or {})
        template = _template_of(folder, tokenizer) or family.template or template
        if not template:
            raise ValueError("no chat_template.jinja, chat_template.json or template in tokenizer_config.json")
        return cls(tokenizer, frames, template)

    def save(self, folder: Path) -> None:
        """Write tokenizer files, chat_template.jinja and preprocessor_config.json into a folder."""
        self.tokenizer.save_pretrained(str(folder))
        if self.frames is not None:
            self.frames.save(folder)
        (folder / "chat_template.jinja").write_text(self.template, encoding="utf-8")

    @property
    def image_token(self) -> int:
        """Id of the token that stands for a piece of the image, in a model that sees images."""
        assert self.frames is not None
        return int(self.tokenizer.convert_tokens_to_ids(self.frames.place))

    def encode_text(self, prompt: str, images: Sequence[str] = ()) -> Ints:
        """Return the token ids [n] of the chat around `prompt`; `images`: the text that takes each image's place.

        Raises ValueError for an empty prompt, one with special tokens, a template without a place for each image, or
        one that refuses the turns of a `conversation`.
        """
        if not prompt.strip():
            raise ValueError("the instruction is empty; say for example 'find the silver bottle'")
        for special in self._marks:
            if special in prompt:
                raise ValueError(f"the instruction contains the special token {special}; leave it out")
        try:
            text = self._render(prompt, len(images))
        except jinja2.TemplateError as error:
            if not is_conversation(prompt):
                raise
            raise ValueError(f"the model's chat template takes no such conversation: {error}") from None
        parts = text.split(self.frames.place) if self.frames is not None else [text]
        if len(parts) != len(images) + 1:
            needed = {0: "none is", 1: "one is"}.get(len(images), f"{len(images)} are")
            raise ValueError(f"the chat template renders {len(parts) - 1} image places, {needed} needed")
        text = "".join(part + image for part, image in zip(parts, [*images, ""], strict=True))
        return np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)

    @property
    def _marks(self) -> list[str]:
        """The tokens that mean something by themselves; others may have been added as words of a user's own."""
        added = self.tokenizer.added_tokens_decoder.values()
        places = {OPENS, CLOSES} | ({self.frames.place} if self.frames is not None else set())
        return [str(token) for token in added if token.special or str(token) in places]

    @property
    def thinking(self) -> Thinking | None:
        """How the model thinks before it answers. Raises ValueError where nobody could tell its answer from that."""
        if OPENS not in self.template and CLOSES not in self.template:
            return None
        return thinking_of(self.tokenizer, self.template, self._render("?", int(self.frames is not None)))

    def _render(self, prompt: str, images: int) -> str:
        """Return the text of the chat around `prompt`, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            chat(prompt, images, in_parts=self.frames is not None),
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
        )
        return str(text)


def load_processor(folder: Path, config: dict[str, Any]) -> Processor:
    """Return the processor of a model folder. Raises ModelFolderError, in one sentence, for files that do not load."""
    try:
        processor = Processor.load(folder, family_of(config["model_type"]), config)
    except (RuntimeError, ImportError) as error:  # what transformers takes from a package that does not load
        raise ModelFolderError(f"model folder {folder} cannot be loaded: {first_line(error)}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = first_line(error).rstrip(":")
        raise ModelFolderError(
            f"model folder {folder}: tokenizer or processor files do not load ({reason}); fetch them again"
        ) from None
    check_template(processor, f"model folder {folder}")
    return processor


def check_template(processor: Processor, whose: str) -> None:
    """Render a chat as a question will be, so that what its template cannot do is known before a robot asks.

    Raises ModelFolderError, in one sentence that begins with `whose` it is.
    """
    try:
        _ = processor.thinking
        processor.encode_text("?", ["here"] * int(processor.frames is not None))
    except (jinja2.TemplateError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ModelFolderError(f"{whose}: its chat template cannot be rendered ({reason}); fetch it again") from None
    except ValueError as error:
        raise ModelFolderError(f"{whose}: {error}") from None


def build_processor(tokenizer: Any, image_size: int, template: str = CHAT_TEMPLATE) -> Processor:
    """Return a processor for a model of our own: frames are scaled to about image_size x image_size pixels.

    Square frames of exactly that size stay as they are. Raises ValueError unless `image_size` is a multiple of 28.
    """
    if image_size < PATCH * MERGE or image_size % (PATCH * MERGE):
        raise ValueError(f"image_size {image_size} must be a multiple of {PATCH * MERGE} pixels (a merged patch)")
    size = {"shortest_edge": image_size**2, "longest_edge": image_size**2}
    return Processor(tokenizer, QwenFrames.of(size=size), template)


def _template_of(folder: Path, tokenizer: Any) -> str:
    """Return a folder's chat template, of several with names the one called default; empty where there is none.

    Raises ValueError where none of several is called default.
    """
    legacy = folder / "chat_template.json"  # which the tokenizer does not read
    if legacy.exists() and not (folder / "chat_template.jinja").exists():
        held = json.loads(legacy.read_text(encoding="utf-8"))["chat_template"]
        named = isinstance(held, list)
        tokenizer.chat_template = {each["name"]: each["template"] for each in held} if named else held
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else ""
