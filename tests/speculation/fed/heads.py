"""Tiny random heads, and the slow exact twin of a session: every output from whole chains, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speculation.features import unpack
from speculation.fed.config import FedConfig
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.head import FedHead
from speculation.wire import MAX_PROMPT_FEATURES, ROOT

VOCABULARY = 40


def tiny_config(**changes: Any) -> FedConfig:
    """Return the config of a head of a target of width 24."""
    values: dict[str, Any] = {
        "target": "t" * 16, "tokenizer": "t" * 16, "vocabulary": VOCABULARY, "layers": (0, 1, 2), "hidden": 24,
        "size": 12, "prompt_tokens": 4, "width": 16, "heads": 2, "intermediate": 24,
        "short_list": tuple(range(3, VOCABULARY, 2)),
    }  # fmt: skip
    return FedConfig(**(values | changes))


def random_head(config: FedConfig, seed: int = 0, scale: float = 1.0) -> FedHead:
    """Return a head in float64 whose drafts depend on all that it sees."""
    return _stirred(FedHead(config), seed, scale).double()


def random_encoder(config: FedConfig, seed: int = 0) -> FeatureEncoder:
    """Return a random bottleneck."""
    return _stirred(FeatureEncoder(config), seed, 1.0)


def _stirred(module: Any, seed: int, scale: float) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale * weight.shape[-1] ** -0.5)
    return module.requires_grad_(False).eval()


@dataclass
class _Entry:
    token: int
    state: Tensor
    output: Tensor | None = None


@dataclass
class SlowSession:
    """What `FedSession` is: entries as lists, each output computed anew by the layer over its whole chain.

    An entry's state is fixed when it is fed: the output of its parent as that was then known, or the target's feature.
    """

    head: FedHead
    prefix: list[_Entry] = field(default_factory=list)
    first: int = 0
    nodes: list[tuple[int, _Entry]] = field(default_factory=list)

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: object = None) -> None:
        self.first, self.nodes = 0, []
        self.prefix = [_Entry(token, self._blank) for token in committed]

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        states = self.head.up(torch.from_numpy(unpack(packed, self.head.config.size)).double())
        if not self.prefix:
            self.first = end
        for place in range(end - 1, end - len(tokens) - 1, -1):
            index, token, state = place - self.first, tokens[place - end], states[place - end]
            if index >= len(self.prefix) and self.prefix:
                continue
            if index < 0 or not self.prefix:
                self.prefix.insert(0, _Entry(token, state))
                self.first = place
            else:
                assert self.prefix[index].token == token
                self.prefix[index].state = state
        if end - len(tokens) < self.first + len(self.prefix):
            self.prefix[-1].output = None

    def root_logits(self, stop: object = None) -> np.ndarray:
        if self.prefix[-1].output is None:
            self.prefix[-1].output = self._output(self.prefix)
        return self._logits(self.prefix[-1])

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: object = None) -> np.ndarray:
        self.root_logits()
        rows = []
        for token, parent in zip(tokens, parents, strict=True):
            above = self.prefix[-1] if parent == ROOT else self.nodes[parent][1]
            assert above.output is not None
            entry = _Entry(token, above.output)
            self.nodes.append((parent, entry))
            entry.output = self._output([*self.prefix, *self._chain(len(self.nodes) - 1)])
            rows.append(self._logits(entry))
        return np.stack(rows)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        end = path[-1] if path else ROOT
        last = self.nodes[end][1] if path else (self.prefix[-1] if self.prefix else None)
        root = next((i for i, (p, e) in enumerate(self.nodes) if p == end and e.token == next_token), None)
        self.prefix += [self.nodes[node][1] for node in path]
        if root is None:
            state = self._blank if last is None or last.output is None else last.output
            self.prefix.append(_Entry(next_token, state))
            self.nodes = []
            return {}
        self.prefix.append(self.nodes[root][1])
        renamed, kept = {root: ROOT}, []
        for i, (parent, entry) in enumerate(self.nodes):
            if parent in renamed and i != root:
                renamed[i] = len(kept)
                kept.append((renamed[parent], entry))
        self.nodes = kept
        return renamed

    @property
    def _blank(self) -> Tensor:
        return torch.zeros(self.head.config.width, dtype=torch.float64)

    def _chain(self, node: int) -> list[_Entry]:
        chain: list[_Entry] = []
        while node != ROOT:
            parent, entry = self.nodes[node]
            chain.insert(0, entry)
            node = parent
        return chain

    def _output(self, chain: Sequence[_Entry]) -> Tensor:
        head, heads = self.head, self.head.config.heads
        states = torch.stack([entry.state for entry in chain])
        places = torch.arange(len(chain)) + MAX_PROMPT_FEATURES + self.first
        parts = head.enter(head.rows([entry.token for entry in chain]), states, places)
        attended = []
        for h in range(heads):
            scores = parts.keys[:, h] @ parts.queries[-1, h] / head.config.head_dim**0.5
            attended.append(scores.softmax(0) @ parts.values[:, h])
        return head.leave(states[-1], torch.stack(attended))

    def _logits(self, entry: _Entry) -> np.ndarray:
        row = np.full(self.head.config.vocabulary, -np.inf)
        assert entry.output is not None
        row[list(self.head.config.short_list)] = self.head.logits(entry.output).numpy()
        return row
