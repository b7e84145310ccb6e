"""The embedded pair's shapes and its tokenizer: Qwen2-VL architecture, small enough to train on two CPU cores."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

from adapters_training import wording
from adapters_training.records import Door, Frame, Seen, Task
from adapters_training.settings import Command
from speculation.language.prompts import ACTIONS, MOTIONS, Vocabulary
from speculation.language.search_memory import SIDE_PHRASES, SearchMemory
from speculation.vlm.processing import SPECIAL_TOKENS, Processor, build_processor
from vlm_nav_simulation.objects import CLASSES, COLOURS

IMAGE_SIZE = 224
CORPUS_LINES = 20_000
"""Sentences that the tokenizer is trained on."""
BLOCKERS = ("table", "sofa", "shelf", "wall")
"""What stands in the way besides objects."""
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


ROPE_THETA = 20.0
"""M-RoPE gives an image's columns the lowest third of the frequencies. At Qwen's base they turn by 0.003 rad a column,
by which eight columns cannot be distinguished; at this base by 0.05 to 0.15, and 114 positions still do not repeat."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one Qwen2-VL model: language model width, layers, heads, MLP width; vision width, depth, heads."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vision: int
    vision_layers: int
    vision_heads: int


TARGET = Shape(hidden=320, layers=8, heads=5, kv_heads=5, mlp=832, vision=192, vision_layers=4, vision_heads=6)
DRAFT = Shape(hidden=160, layers=3, heads=5, kv_heads=5, mlp=416, vision=96, vision_layers=4, vision_heads=3)


def build_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """Return an untrained float32 model; its embedding is padded to a multiple of 64 tokens."""
    token = tokenizer.convert_tokens_to_ids
    half = shape.hidden // shape.heads // 2
    time = half // 4
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": ROPE_THETA,
                "mrope_section": [half - 2 * ((half - time) // 2), (half - time) // 2, (half - time) // 2],
            },
            "bos_token_id": token("<|im_start|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            "depth": shape.vision_layers,
            "embed_dim": shape.vision,
            "num_heads": shape.vision_heads,
            "hidden_size": shape.hidden,
            "mlp_ratio": 4,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    factory: Any = Qwen2VLForConditionalGeneration
    model = factory._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.generation_config.eos_token_id = token("<|im_end|>")
    model.generation_config.pad_token_id = token("<|endoftext|>")
    return model


def parameters(model: torch.nn.Module) -> int:
    """Return the number of distinct parameters."""
    return sum({id(p): p.numel() for p in model.parameters()}.values())


def known_objects() -> Vocabulary:
    """Return the objects that the simulator shows and the pair learns to find."""
    return Vocabulary(tuple(COLOURS), tuple(CLASSES), form=2)


def corpus(vocabulary: Vocabulary, blockers: tuple[str, ...]) -> list[str]:
    """Return sentences that hold every word of `wording` with every object: what the tokenizer is trained on."""
    rng = random.Random(0)
    sides = tuple(SIDE_PHRASES)

    def thing() -> Seen:
        return Seen(rng.choice(vocabulary.colours), rng.choice(vocabulary.classes), rng.choice(sides), rng.random() * 5)

    text = ["user\n", "assistant\n"]
    for _ in range(CORPUS_LINES):
        target = thing()
        task = Task(
            target.colour,
            target.object_class,
            target if rng.random() < 0.7 else None,
            rng.choice(ACTIONS).text,
            rng.choice(("search", "reached", "centre", "approach", "detour", "explore", "door", "return", "not here")),
            rng.choice((*blockers, f"{rng.choice(vocabulary.colours)} {rng.choice(vocabulary.classes)}")),
            tuple(f"{action.text}{rng.choice(('', ' blocked'))}" for action in rng.sample(MOTIONS, 2)),
            query=rng.choice(("", "", f"find a {target.object_class}", f"find something {target.colour}")),
            memory=_walked(rng),
        )
        frame = Frame(b"", b"", b"", b"", [thing(), thing()], [task], (Door(rng.choice(sides), rng.random() * 5),))
        text += [wording.prompt(task), wording.answer(frame, task, rng)]
    return text


def _walked(rng: random.Random) -> tuple[str, ...]:
    """Return the memory of some walk: all its words."""
    memory = SearchMemory()
    for _ in range(rng.randint(1, 4)):
        memory.look(rng.uniform(-3, 3), rng.uniform(-3, 3), rng.uniform(-3, 3))
        memory.door(rng.uniform(-0.6, 0.6), rng.uniform(0.5, 4))
        memory.found(rng.uniform(-0.6, 0.6), rng.uniform(0.5, 4))
    return memory.lines()


def train_tokenizer(lines: list[str], vocabulary_size: int = 1024) -> Any:
    """Return a byte-level BPE tokenizer in Qwen2's layout, trained on `lines`."""
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    raw.train_from_iterator(lines, trainer)
    model = json.loads(raw.to_str())["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    factory: Any = Qwen2Tokenizer
    return factory(
        vocab=model["vocab"],
        merges=merges,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=4096,
    )


def write_processor(folder: Path, vocabulary: Vocabulary, blockers: tuple[str, ...]) -> str:
    """Train the tokenizer, write tokenizer, processor and object names into `folder`; returns a sentence about it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus(vocabulary, blockers))
    build_processor(tokenizer, IMAGE_SIZE).save(folder)
    vocabulary.save(folder)
    return f"{folder}: {len(tokenizer)} tokens, frames of {IMAGE_SIZE} x {IMAGE_SIZE} pixels"


class ProcessorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which processor is written."""

    out: Annotated[Path, Meta(description="folder to write")]
    like: Annotated[Path | None, Meta(description="keep the tokenizer of this model, to go on from it")] = None


def _run(config: ProcessorConfig) -> int:
    """Write the processor folder. Raises ValueError for a model to keep the tokenizer of that has none."""
    if config.like is None:
        print(write_processor(config.out, known_objects(), BLOCKERS))
        return 0
    vocabulary = Vocabulary.load(config.like)
    if vocabulary is None:
        raise ValueError(f"--like {config.like} is no model of this pair: it has no objects.json")
    config.out.mkdir(parents=True, exist_ok=True)
    Processor.load(config.like).save(config.out)
    vocabulary.save(config.out)
    print(f"{config.out}: tokenizer and processor of {config.like}")
    return 0


COMMAND = Command(
    "processor", "train the tokenizer and write the offline processor folder",
    "Train the byte-level BPE tokenizer on all words of the pair, and write it with chat template, frame size "
    f"({IMAGE_SIZE} x {IMAGE_SIZE}) and object names: seconds, and the same files every time.",
    ProcessorConfig, _run,
)  # fmt: skip
