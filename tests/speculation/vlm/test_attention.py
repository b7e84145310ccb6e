"""Attention by rows is the decoder's alone: transformers' own names keep what they mean, for every other model."""

from __future__ import annotations

import torch

from speculation.vlm.model import Vlm


def test_the_models_own_forward_still_masks_padding(target: Vlm) -> None:
    """A name for which no mask is made would let padding be seen."""
    tokens = torch.tensor([[7, 8, 9, 10]])
    padded = torch.tensor([[3, 5, 7, 8, 9, 10]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[[0, 0, 0, 1, 2, 3]]]).expand(3, 1, 6)
    with torch.no_grad():
        alone = target.model(input_ids=tokens).logits[0]
        beside = target.model(input_ids=padded, attention_mask=mask, position_ids=positions).logits[0, 2:]
    torch.testing.assert_close(beside, alone, rtol=0, atol=1e-9)
