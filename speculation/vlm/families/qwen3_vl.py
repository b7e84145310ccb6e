"""Qwen3-VL (arXiv 2511.21631), dense and with experts: as Qwen2-VL but for DeepStack (arXiv 2406.04334).

What the vision tower's layers `deepstack_visual_indexes` have seen is added to what the decoder's first layers put out
at the places of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from speculation.vlm.families.family import Seen
from speculation.vlm.families.qwen_vl import QwenVL
from speculation.vlm.positions import Grid

if TYPE_CHECKING:
    from torch import Tensor


class Qwen3VL(QwenVL):
    """Qwen3-VL 2B to 32B, 30B-A3B and 235B-A22B."""

    classes: ClassVar[dict[str, str]] = {
        "qwen3_vl": "Qwen3VLForConditionalGeneration",
        "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    }

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        import torch

        found = self._found(model, pixels, grids)
        # Of each level a tensor, or one for each image.
        levels = [level if isinstance(level, torch.Tensor) else torch.cat(tuple(level))
                  for level in found.deepstack_features]  # fmt: skip
        return Seen(torch.cat(tuple(found.pooler_output)), tuple(levels))
