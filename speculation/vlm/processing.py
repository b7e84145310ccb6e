"""Prompt -> tokens, frame -> pixel values, offline and without torchvision; the processor files of a model folder."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from speculation.frames import Frame, jpeg_size, scale_jpeg
from speculation.language.prompts import chat
from speculation.language.thinking import OPENS, thinking_of
from speculation.vlm.folder import SEEING, ModelFolderError
from speculation.vlm.positions import Grid, Ints
from speculation.wire import MAX_FRAMES, Jpegs, Thinking, frames_of, jpeg_of

PATCH = 14
MERGE = 2
IMAGE_PLACE = "<|image_pad|>"
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
    IMAGE_PLACE,
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
VICUNA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}A chat between a curious "
    "user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the "
    "user's questions.{% endif %} {% for message in messages %}{% if message.role == 'user' %}"
    "USER: {{ message.content }} {% elif message.role == 'assistant' %}"
    "ASSISTANT: {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
"""Vicuna's conversation (FastChat's vicuna_v1.1), which its checkpoints do not carry in their own folders."""


@dataclass(frozen=True)
class Processor:
    """Tokenizer, chat template and image preprocessing (None for a language model alone) of a model folder."""

    tokenizer: Any
    images: Any
    template: str

    @classmethod
    def load(cls, folder: Path, *, sees: bool = True, template: str = "") -> Processor:
        """Read a model folder's tokenizer and, if the model `sees`, its image processor files.

        `template` is used where the folder has no chat template. Raises OSError or ValueError for missing files.
        """
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        images = Qwen2VLImageProcessorPil.from_pretrained(str(folder), local_files_only=True) if sees else None
        template = _read_template(folder) or _default_of(tokenizer.chat_template) or template
        if not template:
            raise ValueError("no chat_template.jinja, chat_template.json or template in tokenizer_config.json")
        return cls(tokenizer, images, template)

    def save(self, folder: Path) -> None:
        """Write tokenizer files, chat_template.jinja and preprocessor_config.json into a folder."""
        self.tokenizer.save_pretrained(str(folder))
        if self.images is not None:
            self.images.save_pretrained(str(folder))
        (folder / "chat_template.jinja").write_text(self.template, encoding="utf-8")

    def limit(self, least: int, most: int) -> None:
        """Bound the pixels of resized frames; 0 leaves the folder's own bound. Raises ValueError where they cross."""
        if self.images is None or not (least or most):
            return
        size = {"shortest_edge": least or self.images.size["shortest_edge"]}
        size["longest_edge"] = most or self.images.size["longest_edge"]
        if size["shortest_edge"] > size["longest_edge"]:
            raise ValueError(
                f"frames of at least {size['shortest_edge']} and at most {size['longest_edge']} pixels cannot be made; "
                "set both min_pixels and max_pixels"
            )
        self.images.size = size

    @property
    def image_token(self) -> int:
        """Id of the token that stands for a piece of the image."""
        return int(self.tokenizer.convert_tokens_to_ids(IMAGE_PLACE))

    def encode_text(self, prompt: str, image_tokens: int | Sequence[int]) -> Ints:
        """Return the token ids [n] of the chat around `prompt`, its image place repeated `image_tokens` times.

        Several numbers: so many images, each with its own. 0 image tokens: the chat has no image. Raises ValueError for
        an empty prompt, one with special tokens, or a template without an image place for each image.
        """
        counts = [count for count in ([image_tokens] if isinstance(image_tokens, int) else image_tokens) if count]
        if not prompt.strip():
            raise ValueError("the instruction is empty; say for example 'find the silver bottle'")
        for special in self.tokenizer.get_added_vocab():
            if special in prompt:
                raise ValueError(f"the instruction contains the special token {special}; leave it out")
        parts = self._render(prompt, len(counts)).split(IMAGE_PLACE)
        if len(parts) != len(counts) + 1:
            needed = {0: "none is", 1: "one is"}.get(len(counts), f"{len(counts)} are")
            raise ValueError(f"the chat template renders {len(parts) - 1} image places, {needed} needed")
        text = "".join(part + IMAGE_PLACE * count for part, count in zip(parts, [*counts, 0], strict=True))
        return np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)

    @property
    def thinking(self) -> Thinking | None:
        """How the model thinks before it answers. Raises ValueError where nobody could tell its answer from that."""
        if OPENS not in self.template:
            return None
        return thinking_of(self.tokenizer, self.template, self._render("?", int(self.images is not None)))

    def _render(self, prompt: str, images: int) -> str:
        """Return the text of the chat around `prompt`, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            chat(prompt, images),
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
        )
        return str(text)

    def encode_image(self, frame: Frame) -> tuple[npt.NDArray[np.float32], Grid]:
        """Return pixel values [patches, patch_dim] and grid of an RGB frame [H, W, 3], resized as the model wants it.

        Raises ValueError for a frame that is more than 200 times longer than wide or the reverse.
        """
        pixels = self.images.preprocess(
            images=frame,
            do_resize=self.resized(*frame.shape[:2]) != frame.shape[:2],
            input_data_format="channels_last",
            return_tensors="np",
        )
        time, rows, columns = (int(size) for size in pixels["image_grid_thw"][0])
        return np.ascontiguousarray(pixels["pixel_values"], dtype=np.float32), (time, rows, columns)

    def patchify(self, frames: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], Grid]:
        """Return pixel values [B * patches, patch_dim] and the grid of each of the frames [B, H, W, 3], all at once.

        For training: equal to `encode_image` frame by frame, where no resize is needed. Raises ValueError where it is.
        """
        batch, height, width, channels = frames.shape
        patch, merge, time = self.images.patch_size, self.images.merge_size, self.images.temporal_patch_size
        if self.resized(height, width) != (height, width):
            raise ValueError(
                f"frames of {height} x {width} pixels need a resize to {self.resized(height, width)} first"
            )
        rows, columns = height // patch, width // patch
        values = self._levels()[frames, np.arange(channels)]
        values = values.reshape(batch, rows // merge, merge, patch, columns // merge, merge, patch, channels)
        values = values.transpose(0, 1, 4, 2, 5, 7, 3, 6)
        values = np.repeat(values[:, :, :, :, :, :, None], time, axis=6)
        return values.reshape(batch * rows * columns, channels * time * patch * patch), (1, rows, columns)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width in pixels that a frame is resized to."""
        return fit(height, width, *self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """What `fit` makes a frame's size of: the unit of its sides, its least and its most pixels."""
        size = self.images.size
        return self.images.patch_size * self.images.merge_size, size["shortest_edge"], size["longest_edge"]

    def _levels(self) -> npt.NDArray[np.float32]:
        # Normalising the 256 levels with the processor's own arithmetic makes the table equal to it bit for bit.
        ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=0)
        scaled = self.images.rescale(ramp, self.images.rescale_factor)
        levels = self.images.normalize(scaled, self.images.image_mean, self.images.image_std)
        return np.ascontiguousarray(levels[:, :, 0].T, dtype=np.float32)


def load_processor(folder: Path, family: str) -> Processor:
    """Return the processor of a model folder. Raises ModelFolderError, in one sentence, for files that do not load."""
    try:
        processor = Processor.load(folder, sees=family in SEEING, template=VICUNA_TEMPLATE if family == "llama" else "")
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelFolderError(
            f"model folder {folder}: tokenizer or processor files do not load ({reason}); fetch them again"
        ) from None
    try:
        _ = processor.thinking
    except ValueError as error:
        raise ModelFolderError(f"model folder {folder}: {error}") from None
    return processor


def fit(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Return the height and width in pixels that Qwen2-VL's processor resizes a frame to.

    Sides are multiples of `unit`, and it has `least` to `most` pixels; where `most` is less than four times `least` the
    processor's rule may make it larger. Raises ValueError for a frame that is more than 200 times longer than wide or
    the reverse.
    """
    resized: tuple[int, int] = smart_resize(height, width, unit, least, most)
    return resized


def reduced(jpeg: Jpegs, unit: int, least: int, most: int) -> Jpegs:
    """Return smaller frames of which a processor with these values of `fit` makes the size that it would make of these.

    A frame of that size, one that would be enlarged or take more bytes, and one that cannot be read stay as they are.
    """
    return jpeg_of([_reduced(frame, unit, least, most) for frame in frames_of(jpeg)])


def _enough(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Return the smallest size, of those tried, that `fit` resizes as it resizes this one."""
    wanted = fit(height, width, unit, least, most)
    if fit(*wanted, unit, least, most) == wanted:
        return wanted
    # Where least and most are close together the processor would enlarge its own result; of a picture with a few
    # pixels more than `most`, and of the same proportions, it makes the same.
    scale = math.sqrt(most / (height * width))
    for percent in range(100, 151, 2):
        size = math.ceil(height * scale * percent / 100), math.ceil(width * scale * percent / 100)
        if size[0] < height and size[1] < width and fit(*size, unit, least, most) == wanted:
            return size
    return height, width


@functools.lru_cache(maxsize=MAX_FRAMES)  # a question may hold frames of the one before
def _reduced(jpeg: bytes, unit: int, least: int, most: int) -> bytes:
    try:
        height, width = jpeg_size(jpeg)
        size = _enough(height, width, unit, least, most)
        larger = size[0] > height or size[1] > width
        return jpeg if larger or size == (height, width) else min(scale_jpeg(jpeg, *size), jpeg, key=len)
    except ValueError:
        return jpeg


def build_processor(tokenizer: Any, image_size: int, template: str = CHAT_TEMPLATE) -> Processor:
    """Return a processor for a model of our own: frames are scaled to about image_size x image_size pixels.

    Square frames of exactly that size stay as they are. Raises ValueError unless `image_size` is a multiple of 28.
    """
    if image_size < PATCH * MERGE or image_size % (PATCH * MERGE):
        raise ValueError(f"image_size {image_size} must be a multiple of {PATCH * MERGE} pixels (a merged patch)")
    size = {"shortest_edge": image_size**2, "longest_edge": image_size**2}
    return Processor(tokenizer, Qwen2VLImageProcessorPil(size=size), template)


def _read_template(folder: Path) -> str:
    jinja, legacy = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.exists():
        return jinja.read_text(encoding="utf-8")
    if legacy.exists():
        return _default_of(json.loads(legacy.read_text(encoding="utf-8"))["chat_template"])
    return ""


def _default_of(templates: Any) -> str:
    """Return a chat template, of several with names the one called default. Raises ValueError where none is."""
    if isinstance(templates, str) or not templates:
        return templates or ""
    named = templates
    if isinstance(templates, list):
        named = {each.get("name"): each.get("template") for each in templates if isinstance(each, dict)}
    if not isinstance(named, dict) or not isinstance(named.get("default"), str):
        names = ", ".join(map(str, named)) if isinstance(named, dict) else type(templates).__name__
        raise ValueError(f"chat_template has no template called default ({names}); write it to chat_template.jinja")
    return str(named["default"])
