"""The head: one decoder layer and a short list of tokens, on the robot and in training (torch).

With x_i the tokens, f_i the target's feature of x_i, U and E matrices, N norms:

    s_i = U f_{i-1}, or a_{i-1} where f_{i-1} is not there      state: what is known of the text before x_i
    z_i = [N E x_i ; N s_i]                                     input; queries, keys and values are projections of it
    h_i = s_i + O attend(q_i; k_0..k_i, v_0..v_i)
    a_i = h_i + MLP(N h_i)                                      output, which stands in for the feature of x_i
    p(x_{i+1} | x_0..x_i) = softmax(L N a_i)                    over the short list

This is the draft layer of EAGLE-3 (arXiv 2503.01840, Sec. 3), with a narrower state and with a list of tokens on both
ends. Keys and values of an entry depend on its own token and state alone, since there is one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speculation.fed.config import FedConfig


@dataclass(frozen=True)
class Projected:
    """What attention needs of entries [...]."""

    queries: Tensor
    """[..., heads, head_dim], rotated to the entries' places."""
    keys: Tensor
    """[..., heads, head_dim], rotated to the entries' places."""
    values: Tensor
    """[..., heads, head_dim]."""


class FedHead(nn.Module):
    """The weights and the parts of the layer; who sees whom is the caller's business."""

    def __init__(self, config: FedConfig) -> None:
        super().__init__()
        self.config = config
        width, listed = config.width, len(config.short_list)
        self.embed = nn.Embedding(listed + 1, width)
        """Rows of the short list; the last one stands for all other tokens."""
        self.up = nn.Linear(config.size, width, bias=False)
        self.token_norm = nn.RMSNorm(width, eps=1e-6)
        self.state_norm = nn.RMSNorm(width, eps=1e-6)
        self.project = nn.Linear(2 * width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.middle_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate = nn.Linear(width, config.intermediate, bias=False)
        self.widen = nn.Linear(width, config.intermediate, bias=False)
        self.narrow = nn.Linear(config.intermediate, width, bias=False)
        self.final_norm = nn.RMSNorm(width, eps=1e-6)
        self.list_head = nn.Linear(width, listed, bias=False)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        ids = torch.tensor(config.short_list)
        self.register_buffer("ids", ids, persistent=False)
        places = torch.full((config.vocabulary,), listed)
        places[ids] = torch.arange(listed)
        self.register_buffer("places", places, persistent=False)

    def rows(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Return the rows of the embedding that stand for tokens [...]."""
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.embed.weight.device)
        places: Tensor = self.get_buffer("places")[ids]
        return places

    def enter(self, rows: Tensor, states: Tensor, positions: Tensor) -> Projected:
        """Project entries [...]: their tokens' rows, states [..., width] and places in the text, from 0."""
        entries = torch.cat([self.token_norm(self.embed(rows)), self.state_norm(states)], dim=-1)
        parts = self.project(entries).unflatten(-1, (3, self.config.heads, self.config.head_dim)).unbind(-3)
        turn = self._rotation(positions)
        return Projected(_rotated(parts[0], *turn), _rotated(parts[1], *turn), parts[2])

    def leave(self, states: Tensor, attended: Tensor) -> Tensor:
        """Return outputs [..., width] of entries with these states and what they attended, [..., heads, head_dim]."""
        hidden = states + self.attended(attended.flatten(-2))
        normed = self.middle_norm(hidden)
        out: Tensor = hidden + self.narrow(F.silu(self.gate(normed)) * self.widen(normed))
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        """Return logits [..., tokens of the short list] of the tokens after the entries with these outputs."""
        found: Tensor = self.list_head(self.final_norm(outputs))
        return found

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = self.config.head_dim // 2
        powers = torch.arange(half, device=positions.device, dtype=torch.float64) / half
        angles = positions[..., None, None] * self.config.rope_theta**-powers
        dtype = self.embed.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = vectors.chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
