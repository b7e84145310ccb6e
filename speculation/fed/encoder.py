"""The bottleneck: the target's hidden states of a token -> its feature, on the verifier and in training (torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speculation.features import LEVELS, Numbers
from speculation.fed.config import FedConfig


class FeatureEncoder(nn.Module):
    """Norms of the chosen layers' outputs side by side, then one matrix (the fusion of EAGLE-3, arXiv 2503.01840,
    Sec. 3.1, into fewer numbers). In float32, whatever the target runs in."""

    def __init__(self, config: FedConfig) -> None:
        super().__init__()
        self.config = config
        self.norms = nn.ModuleList(nn.RMSNorm(config.hidden, eps=1e-6) for _ in config.layers)
        self.down = nn.Linear(config.hidden * len(config.layers), config.size, bias=False)

    def forward(self, hidden: Sequence[Tensor]) -> Tensor:
        """Return features [n, size], float32, of the outputs [n, hidden] of `config.layers`, before the final norm."""
        # Layers of a target that is spread over devices come from several.
        here = self.down.weight.device
        normed = [norm(each.to(here).float()) for norm, each in zip(self.norms, hidden, strict=True)]
        features: Tensor = self.down(torch.cat(normed, dim=-1))
        return features

    @torch.no_grad()
    def numbers(self, hidden: Sequence[Tensor]) -> Numbers:
        """Return the features on the host, to be packed."""
        found: Numbers = self(hidden).cpu().numpy()
        return found


def rounded(features: Tensor) -> Tensor:
    """Return features [..., size] as they come out of `speculation.features` on the other side of a link.

    Gradients pass as if nothing had been rounded (straight-through estimator, arXiv 1308.3432).
    """
    values = features.float()
    scales = values.detach().abs().amax(-1, keepdim=True) / LEVELS
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, torch.inf, scales)
    levels = (values.detach() / scales).round().clamp(-LEVELS, LEVELS)
    crossed = torch.where(torch.isinf(scales), 0.0, levels * scales)
    return values + (crossed - values.detach())
