"""Families of models: one file each, and its entry in the list below. All else knows families through `Family` only."""

from __future__ import annotations

from speculation.vlm.families.family import Family, FrameProcessor, Seen
from speculation.vlm.families.internvl import InternVL
from speculation.vlm.families.qwen3_vl import Qwen3VL
from speculation.vlm.families.qwen_vl import QwenVL
from speculation.vlm.families.smolvlm import SmolVLM
from speculation.vlm.families.text import Llama, Text

__all__ = ["FAMILIES", "INSTEAD", "KINDS", "Family", "FrameProcessor", "Seen", "family_of", "seeing"]

FAMILIES: tuple[Family, ...] = (QwenVL(), Qwen3VL(), InternVL(), SmolVLM(), Llama(), Text())
KINDS: dict[str, Family] = {kind: family for family in FAMILIES for kind in family.classes}
"""The family of each model_type of a config.json."""
INSTEAD = {
    "internvl_chat": "take the checkpoint whose name ends in -HF, which transformers loads without code of its own",
    "idefics3": "take SmolVLM2, which follows SmolVLM in every size",
    "qwen3_5": "three of four layers keep a recurrent state, which a tree of drafted tokens cannot roll back",
}
"""What to know about some that are not among them."""


def family_of(kind: str) -> Family:
    """Return the family of a model_type. Raises KeyError for one that is not known."""
    return KINDS[kind]


def seeing() -> tuple[str, ...]:
    """Return the model_type of all that see images."""
    return tuple(kind for kind, family in KINDS.items() if family.sees_images)
